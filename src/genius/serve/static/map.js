// A map of the collection: codes as nested areas, as large as what lives below them, or items on a plane. Answers are marked on it.
import { codeHue, codeName, h, number, plural } from "./dom.js";
import * as api from "./api.js";
import { EMPTY, address, go } from "./state.js";
import { planeView } from "./plane.js";
import { face } from "./results.js";

const ALL = 512; // codes of a level that are drawn

// Rectangles of given sizes, as square as can be, row by row: [{ x, y, w, h }] in shares of the whole.
export function squarify(sizes, x = 0, y = 0, w = 1, high = 1) {
  const total = sizes.reduce((sum, size) => sum + size, 0), out = [];
  let at = 0, left = total;
  while (at < sizes.length) {
    const short = Math.min(w, high), scale = (w * high) / left;
    let end = at + 1, sum = sizes[at], worst = ratio(sizes.slice(at, end), sum, short, scale);
    while (end < sizes.length) {
      const next = ratio(sizes.slice(at, end + 1), sum + sizes[end], short, scale);
      if (next > worst) break;
      worst = next;
      sum += sizes[end++];
    }
    const deep = (sum * scale) / short;
    let run = 0;
    for (const size of sizes.slice(at, end)) {
      const long = (size / sum) * short;
      out.push(w >= high ? { x, y: y + run, w: deep, h: long } : { x: x + run, y, w: long, h: deep });
      run += long;
    }
    if (w >= high) { x += deep; w -= deep; } else { y += deep; high -= deep; }
    left -= sum;
    at = end;
  }
  return out;
}

const ratio = (row, sum, short, scale) => {
  const deep = (sum * scale) / short;
  return Math.max(...row.map((size) => { const long = (size / sum) * short; return Math.max(deep / long, long / deep); }));
};

const place = ({ x, y, w, h: high }) => ({ left: `${100 * x}%`, top: `${100 * y}%`, width: `${100 * w}%`, height: `${100 * high}%` });

// How many of the answers live below a prefix.
const below = (prefix, hits) => hits.filter((hit) => `${hit.codes.join("-")}-`.startsWith(`${prefix}-`)).length;

function area(child, level, box, inner, { current, hits }) {
  const name = codeName(level, child.code), [example] = child.examples, big = box.w > 0.05 && box.h > 0.06, marks = below(child.prefix, hits);
  const label = `${plural(child.count, "item")}${marks ? `, ${plural(marks, "result")}` : ""}`;
  const there = inner ? { ...current, map: child.prefix, item: "" } : { ...EMPTY, codes: child.prefix };
  return h(
    "a",
    { class: marks ? "area hit" : "area", href: address(there), style: { ...place(box), "--hue": codeHue(level, child.code) }, "aria-label": `Code ${name}: ${label}`, title: `${name}: ${label}` },
    example ? face(example, { size: "small" }) : null,
    big ? h("span", { class: "area-name" }, `${name} · ${number(child.count)}`) : null,
  );
}

// Under the root every kind is an area with its own codes inside; deeper, the codes of one prefix.
async function areas(current, hits, signal) {
  const prefix = current.map, asked = { current, hits };
  const answer = await api.codes(prefix, signal, prefix ? ALL : 0), boxes = squarify(answer.children.map((child) => child.count));
  const canvas = h("div", { class: hits.length ? "areas asked" : "areas" });
  if (prefix) {
    canvas.append(...answer.children.map((child, i) => area(child, answer.level, boxes[i], answer.level + 1 < answer.levels && child.count > 3, asked)));
    return { canvas, answer };
  }
  const kinds = await Promise.all(answer.children.map((child) => api.codes(child.prefix, signal, ALL)));
  answer.children.forEach((child, i) => {
    const box = boxes[i], rest = kinds[i].count - kinds[i].children.reduce((sum, next) => sum + next.count, 0);
    const inner = squarify([...kinds[i].children.map((next) => next.count), ...(rest > 0 ? [rest] : [])]);
    const frame = h("div", { class: "kind-area", style: place(box) }, h("a", { class: "kind-name", href: address({ ...current, map: child.prefix, item: "" }) }, `${codeName(0, child.code)} · ${number(child.count)}`));
    const field = h("div", { class: "kind-field" }, kinds[i].children.map((next, j) => area(next, 1, inner[j], true, asked)));
    if (rest > 0) field.append(h("span", { class: "area rest", style: place(inner.at(-1)) }, h("span", { class: "area-name" }, `${number(rest)} more`)));
    frame.append(field);
    canvas.append(frame);
  });
  return { canvas, answer };
}

// `current` is the address; `hits` are answers to mark, or null.
export async function mapView(current, hits, open, signal) {
  const flat = current.map === "plane", there = (map) => address({ ...current, map, item: "", why: "" });
  const tab = (label, where, on) => h("a", { href: there(where), class: "map-tab", "aria-current": on ? "page" : null }, label);
  const tabs = h("nav", { class: "map-tabs", "aria-label": "Kinds of map" }, tab("Areas", "", !flat), tab("Plane", "plane", flat));
  const title = h("h2", { class: "codes-title", id: "codes-title", tabindex: "-1" }, "The collection as a map");
  const marked = hits && h("p", { class: "marked" }, hits.length ? `${plural(hits.length, "result")} marked. ` : "Nothing was found. ", h("a", { href: there(null) }, "Show them as a list"));
  if (flat) return [title, tabs, marked, ...(await planeView((hits ?? []).map((hit) => hit.id), open, signal))].filter(Boolean);
  const { canvas, answer } = await areas(current, hits ?? [], signal);
  const up = current.map ? h("button", { type: "button", class: "plain small", onclick: () => go({ map: current.map.split("-").slice(0, -1).join("-"), item: "" }) }, "Up") : null;
  const more = answer.children_total - answer.children.length;
  const where = current.map ? `${plural(answer.count, "item")} under ${answer.path.map((step, level) => codeName(level, step.code)).join(" → ")}` : `Every area is a code, as large as its number of items. Open one to zoom in.`;
  return [title, tabs, marked, h("p", { class: "hint" }, where, more > 0 ? `; ${number(more)} smaller codes are not drawn` : ""), up, canvas].filter(Boolean);
}
