// A map of the collection. Areas: codes as nested rectangles, as large as what lives below them. Plane: items where their vectors lie.
import { codeHue, codeName, h, number, plural } from "./dom.js";
import * as api from "./api.js";
import { EMPTY, address, go } from "./state.js";
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

function area(child, level, box, inner) {
  const name = codeName(level, child.code), [example] = child.examples, big = box.w > 0.05 && box.h > 0.06;
  return h(
    "a",
    { class: "area", href: inner ? address({ ...EMPTY, map: child.prefix }) : address({ ...EMPTY, codes: child.prefix }), style: { ...place(box), "--hue": codeHue(level, child.code) }, "aria-label": `Code ${name}: ${plural(child.count, "item")}`, title: `${name}: ${plural(child.count, "item")}` },
    example ? face(example, { size: "small" }) : null,
    big ? h("span", { class: "area-name" }, `${name} · ${number(child.count)}`) : null,
  );
}

// Under the root every kind is an area with its own codes inside; deeper, the codes of one prefix.
async function areas(prefix, signal) {
  const answer = await api.codes(prefix, signal, prefix ? ALL : 0), boxes = squarify(answer.children.map((child) => child.count));
  const canvas = h("div", { class: "areas" });
  if (prefix) {
    canvas.append(...answer.children.map((child, i) => area(child, answer.level, boxes[i], answer.level + 1 < answer.levels && child.count > 3)));
    return { canvas, answer };
  }
  const kinds = await Promise.all(answer.children.map((child) => api.codes(child.prefix, signal, ALL)));
  answer.children.forEach((child, i) => {
    const box = boxes[i], rest = kinds[i].count - kinds[i].children.reduce((sum, next) => sum + next.count, 0);
    const inner = squarify([...kinds[i].children.map((next) => next.count), ...(rest > 0 ? [rest] : [])]);
    const frame = h("div", { class: "kind-area", style: place(box) }, h("a", { class: "kind-name", href: address({ ...EMPTY, map: child.prefix }) }, `${codeName(0, child.code)} · ${number(child.count)}`));
    const field = h("div", { class: "kind-field" }, kinds[i].children.map((next, j) => area(next, 1, inner[j], true)));
    if (rest > 0) field.append(h("span", { class: "area rest", style: place(inner.at(-1)) }, h("span", { class: "area-name" }, `${number(rest)} more`)));
    frame.append(field);
    canvas.append(frame);
  });
  return { canvas, answer };
}

// Items on a plane: the wheel or the buttons zoom, dragging moves, a click opens.
async function plane(open, signal) {
  const { items, count } = await api.map(signal), view = { zoom: 1, x: 0, y: 0 };
  const layer = h("div", { class: "plane-layer" }, items.map((item) => {
    const node = h("button", { type: "button", class: "dot", tabindex: "-1", style: { left: `${100 * item.x}%`, top: `${100 * item.y}%`, "--hue": codeHue(1, item.codes[1] ?? 0) }, title: item.text ?? item.id, "aria-label": item.text ?? item.id, onclick: () => open(item) });
    if (item.thumbnail_url) {
      const image = h("img", { alt: "", draggable: "false" });
      api.show(image, item.thumbnail_url);
      node.append(image);
    }
    return node;
  }));
  const frame = h("div", { class: "plane", tabindex: "0", role: "group", "aria-label": "Items on a plane; plus and minus zoom, arrow keys move" }, layer);
  const show = () => { layer.style.setProperty("transform", `translate(${view.x}px, ${view.y}px) scale(${view.zoom})`); layer.style.setProperty("--zoom", view.zoom); };
  const zoom = (by, px = frame.clientWidth / 2, py = frame.clientHeight / 2) => {
    const next = Math.min(16, Math.max(1, view.zoom * by)), ratioOf = next / view.zoom;
    Object.assign(view, { zoom: next, x: next === 1 ? 0 : px - (px - view.x) * ratioOf, y: next === 1 ? 0 : py - (py - view.y) * ratioOf });
    show();
  };
  frame.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = frame.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  frame.addEventListener("pointerdown", (start) => {
    const from = { ...view };
    const move = (event) => { view.x = from.x + event.clientX - start.clientX; view.y = from.y + event.clientY - start.clientY; show(); };
    const end = () => { frame.removeEventListener("pointermove", move); window.removeEventListener("pointerup", end); };
    frame.addEventListener("pointermove", move);
    window.addEventListener("pointerup", end);
  });
  frame.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    if (event.key === "+" || event.key === "=") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (moves[event.key]) { view.x += moves[event.key][0]; view.y += moves[event.key][1]; show(); }
    else return;
    event.preventDefault();
  });
  const button = (label, act) => h("button", { type: "button", class: "plain small", onclick: act }, label);
  return [
    h("p", { class: "hint" }, `${number(items.length)} of ${plural(count, "item")}, at the two directions in which their vectors differ most. Near is a hint, not an answer. Colours are second codes.`),
    h("div", { class: "row" }, button("Closer", () => zoom(1.5)), button("Farther", () => zoom(1 / 1.5))),
    frame,
  ];
}

export async function mapView(prefix, open, signal) {
  const flat = prefix === "plane";
  const tab = (label, where, on) => h("a", { href: address({ ...EMPTY, map: where }), class: "map-tab", "aria-current": on ? "page" : null }, label);
  const tabs = h("nav", { class: "map-tabs", "aria-label": "Kinds of map" }, tab("Areas", "", !flat), tab("Plane", "plane", flat));
  const title = h("h2", { class: "codes-title", id: "codes-title", tabindex: "-1" }, "The collection as a map");
  if (flat) return [title, tabs, ...(await plane(open, signal))];
  const { canvas, answer } = await areas(prefix, signal);
  const up = prefix ? h("button", { type: "button", class: "plain small", onclick: () => go({ ...EMPTY, map: prefix.split("-").slice(0, -1).join("-") }) }, "Up") : null;
  const more = answer.children_total - answer.children.length;
  const where = prefix ? `${plural(answer.count, "item")} under ${answer.path.map((step, level) => codeName(level, step.code)).join(" → ")}` : `Every area is a code, as large as what lives below it. Open one to go in.`;
  return [title, tabs, h("p", { class: "hint" }, where, more > 0 ? `; ${number(more)} smaller codes are not drawn` : ""), up, canvas].filter(Boolean);
}
