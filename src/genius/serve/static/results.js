// Items as a grid of cards: pictures as pictures, texts as texts, a bar for the score.
import { h, KINDS, plural, shorten } from "./dom.js";
import * as api from "./api.js";
import { gone, remove } from "./changes.js";
import { dragItem } from "./drop.js";

export const titleOf = (item) => shorten(String(item.text ?? item.metadata?.title ?? item.metadata?.name ?? lastPart(item.id)), 120);

// Ids are often paths: the file's name says enough, the whole id is in the detail.
const lastPart = (id) => id.split("/").filter(Boolean).pop() ?? id;

// Beside words stands what they are called, if that says more than they do.
function named(item) {
  const name = String(item.metadata?.title ?? item.metadata?.name ?? lastPart(item.id));
  return name === item.text ? String(item.metadata?.set ?? "") : name;
}

function words(item, size) {
  const text = item.text ?? item.id;
  const short = text.length <= 60 ? "short" : "long";
  return h("span", { class: `face words ${size} ${short}` }, h("span", {}, shorten(text, size === "small" ? 48 : 240)));
}

const likely = (item) => (typeof item.probability === "number" ? `relevant with ${Math.round(100 * item.probability)} %` : "");

// The face of an item: its thumbnail, or its words.
export function face(item, { size = "normal" } = {}) {
  if (!item.thumbnail_url) return words(item, size);
  const image = h("img", { alt: "", loading: "lazy", decoding: "async", draggable: "false" });
  const frame = h("span", { class: `face ${size}` }, image);
  image.addEventListener("error", () => {
    frame.replaceWith(words(item, size));
  });
  api.show(image, item.thumbnail_url);
  return frame;
}

export function card(item, { best = null, open, selected = false }) {
  const scored = typeof item.score === "number";
  const share = scored && best > 0 ? Math.max(0, Math.min(1, item.score / best)) : 0;
  const title = titleOf(item);
  const label = `${title}, ${KINDS[item.modality]}${scored ? `, score ${item.score.toFixed(3)}${likely(item) && `, ${likely(item)}`}` : ""}`;
  return h(
    "li",
    { hidden: gone(item.id) },
    h(
      "button",
      {
        type: "button", class: "card", "data-id": item.id, "aria-label": label, "aria-pressed": selected ? "true" : "false",
        draggable: "true", onclick: () => open(item), ondragstart: (event) => dragItem(event, item),
        onkeydown: (event) => event.key === "Delete" && remove(item),
      },
      face(item),
      h(
        "span",
        { class: "caption" },
        h("span", { class: item.text && item.thumbnail_url ? "title" : "title name" }, item.thumbnail_url ? title : shorten(named(item), 60)),
        h(
          "span",
          { class: "meta" },
          h("span", { class: `kind ${item.modality}` }, KINDS[item.modality]),
          scored && h("span", { class: "score", title: likely(item) }, item.score.toFixed(3)),
        ),
        scored && h("span", { class: "bar" }, h("span", { style: { width: `${(share * 100).toFixed(1)}%` } })),
      ),
    ),
  );
}

export function grid(items, { open, label, selected = "" }) {
  const best = Math.max(...items.map((item) => item.score ?? 0));
  const list = h("ul", { class: "grid", "aria-label": label }, items.map((item) => card(item, { best, open, selected: item.id === selected })));
  list.addEventListener("keydown", moveFocus);
  return list;
}

// Arrow keys walk the grid: left and right by one, up and down by a row as it is laid out now.
function moveFocus(event) {
  const cards = [...event.currentTarget.querySelectorAll("li:not([hidden]) > .card")];
  const at = cards.indexOf(document.activeElement);
  if (at < 0) return;
  const top = cards[0].getBoundingClientRect().top;
  const columns = Math.max(1, cards.findIndex((other) => other.getBoundingClientRect().top > top + 4));
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: cards.length - 1 - at };
  if (!(event.key in steps)) return;
  event.preventDefault();
  cards[Math.max(0, Math.min(cards.length - 1, at + steps[event.key]))].focus();
}

export function mark(id) {
  for (const button of document.querySelectorAll(".card[data-id]")) {
    button.setAttribute("aria-pressed", button.dataset.id === id ? "true" : "false");
  }
}

export const waiting = (count) =>
  h("ul", { class: "grid", "aria-hidden": "true" }, Array.from({ length: count }, () => h("li", {}, h("div", { class: "card ghost" }, h("span", { class: "face" }), h("span", { class: "caption" })))));

// A message in place of results: what happened and what to do next.
export function notice({ title, lines = [], actions = [], tone = "calm" }) {
  return h(
    "div",
    { class: `notice ${tone}`, role: tone === "bad" ? "alert" : null },
    h("h2", {}, title),
    ...lines.filter(Boolean).map((line) => h("p", {}, line)),
    actions.length ? h("div", { class: "row" }, actions) : null,
  );
}

export const summary = (count, request, answer) =>
  `${plural(count, "result")}${request.where ? " within the filter" : ""} in ${answer.took_ms < 10 ? answer.took_ms.toFixed(1) : Math.round(answer.took_ms)} ms`;
