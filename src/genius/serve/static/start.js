// The first impression: varied pictures, and questions that can be clicked.
import { h, shorten } from "./dom.js";
import * as api from "./api.js";
import * as state from "./state.js";
import { grid } from "./results.js";

const SHOWN = 18; // items
const QUESTIONS = 6;

// One item of each of many codes, from all kinds, pictures first: neighbours in an index are alike, codes are not.
async function varied(root, signal) {
  const kinds = await Promise.all(root.children.map((child) => api.codes(child.prefix, signal)));
  const lists = kinds.map((kind) => spread(kind.children.map((child) => child.examples[0]).filter(Boolean)));
  const pictured = (item) => (item.thumbnail_url ? 0 : 1);
  const mixed = [];
  for (let i = 0; i < SHOWN; i++) for (const list of lists) if (list[i]) mixed.push(list[i]);
  return { items: mixed.sort((a, b) => pictured(a) - pictured(b)).slice(0, SHOWN), all: lists.flat() };
}

// Far apart first: the fullest codes come first, and they are often alike.
function spread(items) {
  const step = Math.max(1, Math.floor(items.length / SHOWN));
  return [...items.filter((_, i) => i % step === 0), ...items.filter((_, i) => i % step !== 0)];
}

// Words of the collection itself, short ones: they have answers here.
function questions(items) {
  const words = items.map((item) => String(item.text ?? item.metadata?.title ?? item.metadata?.name ?? "").split(",")[0].trim());
  const good = words.filter((text) => /^[\p{L}][\p{L}\d' -]{2,28}$/u.test(text) && text.split(" ").length <= 5);
  return [...new Set(good)].sort((a, b) => a.split(" ").length - b.split(" ").length).slice(0, 3 * QUESTIONS).filter((_, i) => i % 3 === 0);
}

export async function startView(root, open, selected, signal) {
  const { items, all } = await varied(root, signal);
  const asked = questions(all);
  return [
    h("h2", { class: "start" }, "Search with text, an image, or both"),
    asked.length
      ? h("p", { class: "tries" }, h("span", {}, "Try"), asked.map((q) => h("button", { type: "button", class: "try", onclick: () => state.go({ ...state.EMPTY, q }) }, shorten(q, 40))))
      : null,
    grid(items, { open, label: "A few items of this index", selected }),
    h("p", { class: "hint after" }, "Drop or paste an image anywhere on this page; add text to say what should be different. ", h("a", { href: "#codes=" }, "Browse the collection by its codes"), "."),
  ].filter(Boolean);
}
