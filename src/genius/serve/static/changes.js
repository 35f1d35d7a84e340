// Changing the collection: pictures are added with their words, items are deleted with time to think again.
//
// A deletion is sent some seconds after it was asked for: what was never sent is undone without any loss.
import { $, h, plural, shorten, svg } from "./dom.js";
import * as api from "./api.js";
import * as state from "./state.js";
import { shrink, unusable } from "./pictures.js";

const GRACE = 8000; // milliseconds in which a deletion can be taken back
const READ = 6000; // in which a message can be read
const SIDE = 2048; // pictures beyond the server's limit are sent in this size

let about = null; // what /v1/info said
let onChange = () => {}; // called with the number of items, after a change
const leaving = new Map(); // id -> what is waiting to be deleted
const deleted = new Set(); // ids that are gone, for lists that still show them

// Why nothing can be changed here, or "".
export const refusal = () => {
  if (about === null || about.scopes.includes("write")) return "";
  return about.needs_key ? "This key may search, not change the collection" : "This server is read-only: nothing can be changed";
};

export const gone = (id) => leaving.has(id) || deleted.has(id);

export function allow(info) {
  about = info;
  $("add-open").hidden = Boolean(refusal());
}

// A line at the bottom of the page, with something to press. Looking at it keeps it there.
function toast(text, { act = null, label = "", stays = READ, then = () => {}, bad = false } = {}) {
  let timer = 0;
  const close = () => {
    clearTimeout(timer);
    line.remove();
  };
  const start = () => (timer = setTimeout(() => { close(); then(); }, stays));
  const line = h("div", { class: bad ? "toast bad" : "toast" }, h("span", {}, text), act ? h("button", { type: "button", class: "plain small", onclick: () => { close(); act(); } }, label) : null);
  for (const name of ["pointerenter", "focusin"]) line.addEventListener(name, () => clearTimeout(timer));
  for (const name of ["pointerleave", "focusout"]) line.addEventListener(name, () => line.isConnected && start());
  $("toasts").append(line);
  start();
  return close;
}

// -- deleting -------------------------------------------------------------------------------------------------------

function hide(id, hidden) {
  for (const card of document.querySelectorAll(`[data-id="${CSS.escape(id)}"]`)) (card.closest("li") ?? card).hidden = hidden;
}

export function remove(item) {
  if (refusal()) return void toast(`${refusal()}.`, { bad: true });
  if (gone(item.id)) return;
  const name = shorten(String(item.text ?? item.metadata?.name ?? item.id), 40);
  nextCard(item.id)?.focus();
  const close = toast(`“${name}” will be deleted.`, { label: "Undo", stays: GRACE, act: () => keep(item.id), then: () => send(item.id, name) });
  leaving.set(item.id, { close, name });
  hide(item.id, true);
  if (state.read().item === item.id) state.go({ item: "" });
}

// Where the keyboard goes when a card leaves.
function nextCard(id) {
  const cards = [...document.querySelectorAll("li:not([hidden]) > .card[data-id]")];
  const at = cards.findIndex((card) => card.dataset.id === id);
  return document.activeElement === cards[at] ? (cards[at + 1] ?? cards[at - 1]) : null;
}

function keep(id) {
  leaving.get(id)?.close();
  leaving.delete(id);
  hide(id, false);
  document.querySelector(`.card[data-id="${CSS.escape(id)}"]`)?.focus();
}

// Ctrl+Z: the latest one stays.
export function undo() {
  const last = [...leaving.keys()].at(-1);
  if (last !== undefined) keep(last);
  return last !== undefined;
}

async function send(id, name) {
  try {
    const { count } = await api.remove(id);
    onChange(count);
  } catch (error) {
    if (error.status !== 404) {
      keep(id);
      toast(`“${name}” was not deleted. ${error.message}`, { bad: true });
      return;
    }
  }
  leaving.delete(id);
  deleted.add(id);
  toast(`“${name}” is deleted.`);
}

// -- adding ---------------------------------------------------------------------------------------------------------

// A picture (or none: words alone), what it is called, and its words.
function row(file) {
  const stamp = new Date().toISOString().slice(0, 19).replaceAll(":", "");
  const named = file?.name && !/^image\.\w+$/.test(file.name) ? file.name : `${file ? "pasted" : "words"} ${stamp}`; // browsers call what is pasted image.png
  const name = h("input", { type: "text", class: "add-name", maxlength: "512", value: named, required: true });
  const words = h("input", { type: "text", class: "add-words", maxlength: "8000", required: !file, placeholder: file ? "What it shows (optional)" : "The text" });
  const said = h("p", { class: "add-said", "aria-live": "polite" });
  const image = h("img", { alt: "" });
  if (file) {
    image.src = URL.createObjectURL(file);
    image.addEventListener("error", () => (image.hidden = true));
  } else image.hidden = true;
  const drop = h("button", { type: "button", class: "icon-button", onclick: () => { line.remove(); $("add-go").focus(); count(); } }, svg("m6 6 12 12M18 6 6 18"));
  const line = h("li", {}, h("span", { class: "add-face" }, image), h("span", { class: "add-fields" }, words, name, said), drop);
  Object.assign(line, { file, name, words, said, drop });
  return line;
}

const rows = () => [...$("add-list").children];

function count() {
  for (const [place, line] of rows().entries()) {
    line.name.setAttribute("aria-label", `Id of item ${place + 1}`);
    line.words.setAttribute("aria-label", `Text of item ${place + 1}`);
    line.drop.setAttribute("aria-label", `Leave item ${place + 1} out`);
  }
  $("add-go").textContent = rows().length > 1 ? `Add ${plural(rows().length, "item")}` : "Add";
  $("add-go").disabled = rows().length === 0;
}

// Open the list with these pictures, or add them to it.
export function addFiles(files = []) {
  if (refusal()) return void toast(`${refusal()}.`, { bad: true });
  const bad = files.map(unusable).filter(Boolean);
  if (bad.length) toast(bad[0], { bad: true });
  $("add-list").append(...files.filter((file) => !unusable(file)).map(row));
  if (files.length && bad.length === files.length && !rows().length) return;
  if (!$("add-dialog").open) $("add-dialog").showModal();
  count();
  (rows().find((line) => !line.words.value)?.words ?? $("add-choose")).focus();
}

async function sendRow(line) {
  const form = new FormData();
  form.append("id", line.name.value.trim());
  if (line.words.value.trim()) form.append("text", line.words.value.trim());
  if (line.file) form.append("image", await shrink(line.file, about.limits.max_image_bytes, SIDE), line.file.name || "picture");
  return api.add(form);
}

// One after another, so that what fails stays in the list and says why.
async function addAll() {
  const added = [];
  let items = null;
  $("add-go").disabled = true;
  for (const line of rows()) {
    line.said.textContent = "Adding …";
    try {
      const answer = await sendRow(line);
      items = answer.count;
      if (answer.added) {
        added.push(line.name.value.trim());
        deleted.delete(added.at(-1));
        line.remove();
      } else line.said.textContent = "An item with this id is there already. Give it another one, or leave it out.";
    } catch (error) {
      line.said.textContent = error.message;
    }
  }
  count();
  if (!rows().length) $("add-dialog").close();
  else rows()[0].name.focus();
  if (added.length) {
    toast(added.length === 1 ? `“${shorten(added[0], 40)}” is added.` : `${plural(added.length, "item")} are added.`, { label: "Show", act: () => state.go({ ...state.EMPTY, item: added[0] }) });
    onChange(items);
  }
}

export function setUpChanges(changed) {
  onChange = changed;
  $("add-open").addEventListener("click", () => addFiles());
  $("add-choose").addEventListener("click", () => $("add-files").click());
  $("add-files").addEventListener("change", () => {
    addFiles([...$("add-files").files]);
    $("add-files").value = ""; // the same file may be chosen again
  });
  $("add-note").addEventListener("click", () => {
    $("add-list").append(row(null));
    count();
    rows().at(-1).words.focus();
  });
  $("add-cancel").addEventListener("click", () => $("add-dialog").close());
  $("add-dialog").addEventListener("close", () => $("add-list").replaceChildren());
  $("add-form").addEventListener("submit", (event) => {
    event.preventDefault();
    addAll();
  });
  // Leaving the page is no reason to keep what was to be deleted.
  window.addEventListener("pagehide", () => {
    for (const id of leaving.keys()) api.remove(id, { keepalive: true }).catch(() => {});
  });
}
