// Puts the page together: reads the address, asks the server, shows the answer. The only module with a flow.
import { $, h, plural, shorten } from "./dom.js";
import * as api from "./api.js";
import * as state from "./state.js";
import { fill, offerFields, offerWords, searchLike, searchWith, setDefaultTarget, setUpAsk } from "./ask.js";
import { addFiles, allow, refusal, remove, setUpChanges, undo } from "./changes.js";
import { codesView } from "./codes.js";
import { setUpDrop } from "./drop.js";
import { startView } from "./start.js";
import { whyView } from "./why.js";
import * as detail from "./detail.js";
import { grid, mark, notice, summary, waiting } from "./results.js";

let about = null; // what /v1/info said
let running = new AbortController(); // of the address being drawn: the next one aborts it, and what is aborted puts nothing on the page
let shown = ""; // which list is on screen, so that opening an item does not fetch it again
let scores = new Map();

const say = (text) => ($("status").textContent = text);
const put = (...parts) => $("results").replaceChildren(...parts);
const open = (item) => state.go({ item: item.id });
const button = (label, onclick, main = false) => h("button", { type: "button", class: main ? "go" : "plain", onclick }, label);
const retry = () => {
  shown = "";
  delete $("results").dataset.shown;
  draw();
};

async function loadInfo() {
  about = await api.info();
  $("count").textContent = plural(about.items, "item");
  $("key-open").hidden = !about.needs_key;
  const advice = (about.advice ?? "").split("; ")[0]; // what helps is a command, for whoever runs the server
  $("advice").textContent = advice && `${advice[0].toUpperCase()}${advice.slice(1)}.`;
  $("advice").hidden = !about.advice;
  offerFields(about.fields);
  offerWords(about.words ?? []);
  setDefaultTarget(about.default_target);
  fill(state.read());
  allow(about);
}

async function draw() {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const address = location.hash; // what is drawn: it may change before its event arrives
  const results = $("results");
  results.setAttribute("aria-busy", "true");
  delete results.dataset.shown;
  await drawState(state.read(), signal);
  if (signal.aborted) return;
  results.setAttribute("aria-busy", "false");
  results.dataset.shown = address;
}

async function drawState(current, signal) {
  fill(current);
  $("nav-search").toggleAttribute("aria-current", current.codes === null);
  $("nav-codes").toggleAttribute("aria-current", current.codes !== null);
  const { item, ...list } = current;
  const wanted = JSON.stringify(list);
  if (wanted !== shown) {
    if (!item) detail.close();
    await drawList(current, wanted, signal);
    if (signal.aborted) return;
  }
  if (item) await detail.open(item, scores.get(item));
  else detail.close();
  if (!signal.aborted) mark(item);
}

async function drawList(current, wanted, signal) {
  shown = ""; // until it is there
  const slow = setTimeout(() => {
    if (signal.aborted) return;
    say("Searching …");
    put(waiting(8));
  }, 150);
  try {
    if (about === null) await loadInfo();
    signal.throwIfAborted();
    if (current.codes !== null) await showCodes(current, signal);
    else if (asking(current)) await showSearch(current, signal);
    else await showStart(current, signal);
    shown = wanted;
  } catch (error) {
    if (signal.aborted) return;
    showError(error, current);
  } finally {
    clearTimeout(slow);
  }
}

const asking = (current) => Boolean(current.q || current.pic || current.like);

// What the address asks for: { request, picture, answer }, or null where its picture is gone.
async function ask(current, signal) {
  const picture = current.pic ? state.picture(current.pic)?.blob : undefined;
  if (current.pic && !picture && !current.q) {
    say("");
    put(notice({ title: "The image is gone", lines: ["Images stay on this page only, and it was reloaded. Drop the image again to repeat the search."] }));
    return null;
  }
  const request = { text: current.q || undefined, like: current.like || undefined, target: current.target || undefined, where: current.where || undefined, mode: current.q && current.mode ? current.mode : undefined, k: Number(current.k), minus_like: current.minus || undefined };
  const answer = await api.search(request, picture, signal);
  signal.throwIfAborted();
  scores = new Map(answer.hits.map((hit) => [hit.id, hit.score]));
  return { request, picture, answer };
}

async function showSearch(current, signal) {
  const asked = await ask(current, signal);
  if (!asked) return;
  const { request, picture, answer } = asked;
  if (!answer.hits.length) {
    say("No results");
    put(nothingFound(current, answer.why));
    return;
  }
  const why = h("button", { type: "button", class: "plain small why-open", "aria-expanded": current.why ? "true" : "false", onclick: () => state.go({ why: current.why ? "" : "1" }) }, "Why these results?");
  const reasons = current.why ? h("div", { id: "why" }, await whyView(request, picture, about.items, signal)) : null;
  signal.throwIfAborted();
  const found = summary(answer.hits.length, request, answer); // after the last wait: "Searching …" does not come back
  say(answer.doubtful ? `${found} Probably nothing like that is here (${Math.round(100 * answer.answerable)} %).` : found);
  const without = current.minus && button(`Not like ${shorten(current.minus, 40)} ×`, () => state.go({ minus: "" }));
  put(h("p", { class: "row" }, why, without), ...(reasons ? [reasons] : []), grid(answer.hits, { open, label: "Results", selected: current.item }));
}

function nothingFound(current, why) {
  const actions = [];
  if (current.where) actions.push(button("Search without the filter", () => state.go({ where: "" }), true));
  if (current.target !== "any") actions.push(button("Look for anything", () => state.go({ target: "any" }), !current.where));
  return notice({ title: "Nothing matches", lines: [why], actions });
}

async function showStart(current, signal) {
  scores = new Map();
  if (about.items === 0) {
    say("");
    put(
      notice({
        title: "This index is empty",
        lines: ["Drop images here, or index a folder and come back:", h("code", {}, "genius index PHOTOS/ -o my.genius"), "or send items to POST /v1/items."].slice(refusal() ? 1 : 0),
        actions: [refusal() ? null : button("Add images", () => addFiles(), true), button("Look again", () => { about = null; retry(); })].filter(Boolean),
      }),
    );
    return;
  }
  const root = await api.codes("", signal);
  const parts = await startView(root, open, current.item, signal);
  signal.throwIfAborted();
  say("");
  put(...parts);
}

async function showCodes(current, signal) {
  scores = new Map();
  const answer = await api.codes(current.codes, signal);
  signal.throwIfAborted();
  say(""); // the heading says it, and gets the focus
  put(...codesView(answer, open, current.item));
  if (!current.item) $("codes-title")?.focus({ preventScroll: true });
}

function showError(error, current) {
  say("");
  const bad = (title, lines, actions) => put(notice({ title, lines, actions, tone: "bad" }));
  const again = button("Try again", retry, true);
  if (error.status === 401) {
    bad("This server needs an API key", [error.message], [button("Enter a key", askForKey, true)]);
    if (!$("key-dialog").open) askForKey();
  } else if (error.status === 403) bad("This key may not do that", [error.message], [button("Use another key", askForKey, true)]);
  else if (error.status === 0) bad("The server does not answer", ["It may be restarting, or your connection is down."], [again]);
  else if (error.status === 503 || error.status === 504) {
    const wait = error.retryAfter ? ` It asks to wait ${plural(error.retryAfter, "second")}.` : "";
    bad(error.status === 503 ? "The server is busy" : "That took too long", [`${error.message}.${wait}`.replace("..", ".")], [again]);
  } else if (error.status === 422 && current.where && /where|filter|column|field|condition|expression/i.test(error.message)) {
    bad("The filter could not be used", [error.message, "A filter is a condition on fields, with texts in single quotes: colour = 'red' AND price < 50."], [
      button("Search without the filter", () => state.go({ where: "" }), true),
    ]);
  } else if (error.status === 413 || /image/.test(error.message)) {
    bad("That image could not be used", [error.message], [button("Remove the image", () => state.go({ pic: "", like: "" }), true)]);
  } else if (error.status === 404) bad("Not here", [error.message], [button("Start again", () => state.go(state.EMPTY), true)]);
  else bad("That did not work", [error.message], [again]);
}

function askForKey() {
  $("key").value = "";
  $("key-dialog").showModal();
  $("key").focus();
}

function setUpKeys() {
  $("key-open").addEventListener("click", askForKey);
  $("key-cancel").addEventListener("click", () => $("key-dialog").close());
  $("key-form").addEventListener("submit", () => {
    api.key.set($("key").value.trim());
    about = null;
    retry();
  });
}

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $("text").focus();
    $("text").select();
  } else if (event.key === "?" && !typing) $("keys-dialog").showModal();
  else if (event.key === "z" && (event.ctrlKey || event.metaKey) && !typing && undo()) event.preventDefault();
  else if (event.key === "Escape" && state.read().item && !document.querySelector("dialog[open]")) {
    event.preventDefault();
    state.go({ item: "" });
  }
});

setUpKeys();
const cannotSearch = (problem) => {
  say("");
  shown = "";
  put(notice({ title: "That cannot be searched with", lines: [problem], tone: "bad" }));
};
setUpAsk(cannotSearch);
setUpDrop({ search: searchWith, like: searchLike, add: addFiles, remove, refusal, problem: cannotSearch });
setUpChanges((items) => {
  about.items = items;
  $("count").textContent = plural(items, "item");
  if ($("results").querySelector(".notice")) retry(); // an empty index, no more
});
$("keys-open").addEventListener("click", () => $("keys-dialog").showModal());
$("keys-close").addEventListener("click", () => $("keys-dialog").close());
window.addEventListener("hashchange", draw);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is ours
  $("results").focus();
});
document.querySelector("[data-home]").addEventListener("click", () => ($("text").value = ""));
$("nav-search").addEventListener("click", () => ($("text").value = ""));
draw();
