// One item: its picture and words, where to go from it, and its ID drawn as a path of codes.
import { $, codeHue, codeName, h, KINDS, number, svg } from "./dom.js";
import * as api from "./api.js";
import * as state from "./state.js";
import { refusal, remove } from "./changes.js";
import { face, titleOf } from "./results.js";

let running = null;
let returnTo = null; // where the keyboard goes back to

export function close() {
  running?.abort();
  if ($("detail").hidden) return;
  $("detail").hidden = true;
  document.body.classList.remove("with-detail");
  const card = returnTo && document.querySelector(`.card[data-id="${CSS.escape(returnTo)}"]`);
  card?.focus();
  returnTo = null;
}

export async function open(id, score) {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const panel = $("detail");
  const was = panel.hidden ? null : panel.dataset.id;
  if (document.activeElement?.classList.contains("card")) returnTo = document.activeElement.dataset.id;
  try {
    const item = await api.item(id, signal);
    signal.throwIfAborted();
    panel.replaceChildren(...content(item, score));
  } catch (error) {
    if (signal.aborted) return;
    const gone = error.status === 404;
    panel.replaceChildren(
      head(gone ? "This item is gone" : "This item cannot be shown"),
      h("p", {}, gone ? "It was deleted since you searched. Search again to see what is there now." : error.message),
    );
  }
  panel.dataset.id = id;
  panel.hidden = false;
  panel.scrollTop = 0;
  document.body.classList.add("with-detail");
  if (was !== id) $("detail-title").focus({ preventScroll: true });
}

const head = (title) =>
  h(
    "div",
    { class: "detail-head" },
    h("h2", { id: "detail-title", tabindex: "-1" }, title),
    h("button", { type: "button", class: "icon-button", "aria-label": "Close", title: "Close (Esc)", onclick: () => state.go({ item: "" }) }, svg("m6 6 12 12M18 6 6 18")),
  );

function content(item, score) {
  const parts = [head(titleOf(item))];
  if (item.image_url || item.thumbnail_url) {
    const image = h("img", { class: "picture", alt: item.text ?? `The image of ${item.id}` });
    image.addEventListener("error", () => image.remove());
    api.show(image, item.thumbnail_url ?? item.image_url);
    parts.push(image);
  }
  if (item.text && item.text !== titleOf(item)) parts.push(h("p", { class: "full-text" }, item.text));
  const twins = h("section", { class: "twins" });
  nearDuplicates(item, twins, running.signal);
  parts.push(actions(item), twins, path(item), facts(item, score));
  if (!refusal()) parts.push(h("button", { type: "button", class: "plain small", id: "delete-item", onclick: () => remove(item) }, "Delete this item"));
  return parts;
}

// Whether there is a question that something can be taken out of.
function asked() {
  const { q, pic, like } = state.read();
  return Boolean(q || pic || like);
}

function actions(item) {
  const but = h("input", { type: "text", id: "but", maxlength: "8000", placeholder: "crossed out, filled …", enterkeyhint: "search" });
  const search = (q) => state.go({ like: item.id, minus: "", pic: "", q, codes: null, item: "" });
  return h(
    "div",
    { class: "actions" },
    h("button", { type: "button", class: "plain wide", id: "more-like", onclick: () => search("") }, "More like this"),
    asked() && h("button", { type: "button", class: "plain wide", id: "less-like", onclick: () => state.go({ minus: item.id, item: "" }) }, "Less like this"),
    h(
      "form",
      {
        class: "but",
        onsubmit: (event) => {
          event.preventDefault();
          if (but.value.trim()) search(but.value.trim());
          else but.focus();
        },
      },
      h("label", { for: "but" }, "Like this, but …"),
      h("div", { class: "row tight" }, but, h("button", { type: "submit", class: "go small" }, "Find")),
    ),
  );
}

// What shares nearly all of its codes is nearly the same: no other index is needed to find it.
const ALIKE = 3; // codes that near-duplicates share at least
const FEW = 12; // items that may be near-duplicates of each other

async function nearDuplicates(item, section, signal) {
  const shared = item.path.filter((step, level) => level + 1 >= ALIKE && step.count > 1 && step.count <= FEW).at(-1);
  if (!shared) return;
  try {
    const answer = await api.codes(shared.prefix, signal);
    const others = answer.items.filter((other) => other.id !== item.id);
    if (!others.length) return;
    const depth = shared.prefix.split("-").length;
    section.append(
      h("h3", {}, "Nearly the same"),
      h("p", { class: "hint" }, `Their IDs share the first ${depth} of ${item.path.length} codes.`),
      h("ul", { class: "twin-list" }, others.slice(0, 8).map((other) => h("li", {}, h("button", { type: "button", class: "twin", "aria-label": titleOf(other), title: titleOf(other), onclick: () => state.go({ item: other.id }) }, face(other, { size: "small" }))))),
    );
  } catch (error) {
    if (error.name !== "AbortError") section.remove(); // a guess that cannot be made is no fault of the item
  }
}

function facts(item, score) {
  const rows = [["Kind", KINDS[item.modality]], ["Id", item.id]];
  if (typeof score === "number") rows.unshift(["Score", score.toFixed(4)]);
  for (const [name, value] of Object.entries(item.metadata)) {
    if (value !== null && value !== "") rows.push([name, typeof value === "object" ? JSON.stringify(value) : String(value)]);
  }
  return h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

// The ID, coarse to fine: each step leaves fewer items, which the bars show on a logarithmic scale.
function path(item) {
  const most = Math.max(2, item.path[0]?.count ?? 2);
  const steps = item.path.map((step, level) => {
    const share = Math.max(0.02, Math.log(step.count + 1) / Math.log(most + 1));
    const name = codeName(level, step.code);
    const alone = step.count === 1;
    return h(
      "li",
      { class: alone ? "alone" : null },
      h(
        "a",
        {
          href: state.address({ ...state.EMPTY, codes: step.prefix }),
          "aria-label": `Code ${level + 1}: ${name}. ${alone ? "Only this item" : `${number(step.count)} items`} here. Show the items below it.`,
        },
        h("span", { class: "code", style: { "--hue": codeHue(level, step.code) } }, name),
        h("span", { class: "track" }, h("span", { class: "fill", style: { width: `${(share * 100).toFixed(1)}%`, "--hue": codeHue(level, step.code) } })),
        h("span", { class: "many" }, alone ? "only this" : number(step.count)),
      ),
    );
  });
  return h(
    "section",
    { class: "path" },
    h("h3", {}, "Its ID, code by code"),
    h("p", { class: "hint" }, "Each code narrows it down. Open one to see other items below it."),
    h("ol", {}, steps),
  );
}
