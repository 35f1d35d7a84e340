// The page: takes queries, shows hits, and draws the ID being generated while the collection narrows.

import { Collection } from "./collection.js";
import { Mosaic } from "./mosaic.js";

const $ = (id) => document.getElementById(id);
const make = (tag, props = {}, ...inside) => {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...inside);
  return node;
};
const EXAMPLES = ["an umbrella", "send a letter", "put out a fire", "physician", "a sad face", "keep a secret", "music", "go by train"];
const PACE = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 260; // milliseconds a code is looked at
const NAMES = ["image", "text", "image + text"];

const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const mosaic = new Mosaic($("mosaic"));
const state = { ready: null, sheets: [], picture: null, number: 0, queue: [], timer: 0, done: null };
window.tab = state; // for tests

function ask(watch = true) {
  const text = $("text").value.trim(), form = new FormData($("ask")), target = form.get("target") || null;
  if (!text && !state.picture) return;
  Object.assign(state, { number: state.number + 1, queue: [], done: null });
  clearTimeout(state.timer);
  state.timer = 0;
  slots([]);
  $("status").textContent = state.ready ? "Searching…" : "The model is still loading; your query is next.";
  worker.postMessage({ act: "ask", number: state.number, query: { text, target, picture: state.picture, k: 12, search: form.get("search"), watch } });
}

// The codes so far: how many items each leaves, how likely it was, and some of what lies below.
function slots(codes, steps = []) {
  const levels = state.ready?.about.levels.length ?? 9;
  $("slots").replaceChildren(...Array.from({ length: levels }, (_, level) => {
    if (level >= codes.length) return make("li", { className: "empty" }, make("small", { textContent: level ? `code ${level}` : "modality" }));
    const { lo, hi } = state.collection.find(codes.slice(0, level + 1)), step = steps[level - 1];
    const left = `${(hi - lo).toLocaleString("en")} left`;
    const names = [level === codes.length - 1 ? "now" : "", level ? "" : "modality"].join(" ").trim();
    const item = make("li", { className: names }, make("b", { textContent: level ? codes[level] : NAMES[codes[0]] }), make("small", { textContent: left }), make("span"));
    if (step) item.children[1].append(make("br"), `log p ${step.logP.toFixed(1)}`);
    if (step) item.title = step.rivals.map((rival) => `${rival.code}: log p ${rival.logP.toFixed(2)}, ${rival.items} items`).join("\n");
    const gap = Math.max(1, Math.floor((hi - lo) / 8));
    for (let place = lo; place < hi && item.lastChild.children.length < 8; place += gap) {
      const { picture } = state.ready.items[state.ready.order[place]];
      if (picture !== undefined) item.lastChild.append(make("div", { className: "dot" }, spot(picture)));
    }
    return item;
  }));
}

function play() {
  const next = state.queue.shift();
  state.timer = 0;
  if (!next) return;
  const [best] = next.beams;
  slots(best.codes, best.steps);
  const left = next.beams.reduce((sum, beam) => sum + beam.hi - beam.lo, 0);
  $("narrowing").textContent = `${next.beams.length} ${next.beams.length === 1 ? "beam holds" : "beams hold"} ${left.toLocaleString("en")} of ${state.ready.about.items.toLocaleString("en")} items after ${next.level} ${next.level === 1 ? "code" : "codes"}; the framed one is the most likely.`;
  mosaic.light(next.beams);
  state.timer = setTimeout(play, PACE);
}

function spot(picture) {
  const { cell, columns, rows } = state.ready.about.sheets, local = picture % (columns * rows), node = make("i");
  node.style.background = `url(data/sheet${Math.floor(picture / (columns * rows))}.webp) -${(local % columns) * cell}px -${Math.floor(local / columns) * cell}px`;
  return node;
}

const face = ({ picture, text }) => picture === undefined ? make("div", { className: "face", textContent: text ?? "" }) : make("div", { className: "face" }, spot(picture));

function answer({ hits, answerable, looked, ms, search }) {
  const doubt = answerable !== null && answerable < 0.25 ? " Probably nothing like that is here." : "";
  $("status").textContent = `${hits.length} hits in ${Math.round(ms)} ms; ${looked.toLocaleString("en")} of ${state.ready.about.items.toLocaleString("en")} items were ${search === "genius" ? "found by beams" : "compared"}.${doubt}`;
  $("hits").replaceChildren(...hits.map((hit) => {
    const sure = hit.probability === null ? "" : `${Math.round(100 * hit.probability)} %, `;
    const words = make("div", { className: "words", textContent: hit.name ?? (hit.picture === undefined ? hit.id : hit.text ?? hit.id) }, make("small", { textContent: `${sure}${search === "genius" ? "log p per code" : "score"} ${hit.score.toFixed(3)}` }), make("small", { textContent: hit.codes.join(" ") }));
    const item = make("li", {}, face(hit), words);
    item.dataset.id = hit.id;
    return item;
  }));
  state.done = { hits, answerable, ms };
}

async function ready(message) {
  const { about, items, order, codes, levels, ms, total } = message;
  state.ready = message;
  state.collection = new Collection(codes, order, levels);
  document.title = `${about.title} · GENIUS in a tab`;
  $("about").textContent = `${about.title}: ${about.items.toLocaleString("en")} items, ${(total / 1e6).toFixed(1)} MB loaded in ${(ms / 1000).toFixed(1)} s`;
  if (!state.number) $("status").textContent = "Ready: ask something, or take an example.";
  slots([]);
  state.sheets = await Promise.all(Array.from({ length: about.sheets.count }, async (_, i) => {
    const picture = new Image();
    picture.src = `data/sheet${i}.webp`;
    await picture.decode().catch(() => null);
    return picture;
  }));
  mosaic.draw(about, order, items, state.sheets);
}

worker.onmessage = ({ data }) => {
  if (data.act === "part") $("status").textContent = state.number ? $("status").textContent : `Loading: ${(data.total / 1e6).toFixed(1)} MB`;
  else if (data.act === "ready") ready(data);
  else if (data.act === "error") $("status").textContent = `This did not work: ${data.text}`;
  else if (data.number !== state.number) return; // of an older query
  else if (data.act === "answer") answer(data);
  else if (data.act === "beams") {
    state.queue.push(data);
    if (!state.timer) play();
  } else if (data.act === "end") state.generated = data.number;
};

async function take(file) {
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) { $("status").textContent = `${file.name} is not an image that this browser reads`; return; }
  const scale = Math.min(1, 512 / Math.max(bitmap.width, bitmap.height)), canvas = make("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const pen = canvas.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const { data, width, height } = pen.getImageData(0, 0, canvas.width, canvas.height);
  state.picture = { data, width, height };
  $("chosen-image").src = canvas.toDataURL();
  $("chosen").hidden = false;
  ask();
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
$("ask").addEventListener("change", (event) => { if (event.target.type === "radio") ask(); });
$("file").addEventListener("change", (event) => { if (event.target.files[0]) take(event.target.files[0]); event.target.value = ""; });
$("chosen-remove").addEventListener("click", () => { state.picture = null; $("chosen").hidden = true; ask(); });
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => { event.preventDefault(); const file = event.dataTransfer.files[0]; if (file) take(file); });
$("examples").append(...EXAMPLES.map((text) => make("button", { type: "button", textContent: text, onclick: () => { $("text").value = text; ask(); } })));
addEventListener("resize", () => { if (state.sheets.length) mosaic.draw(state.ready.about, state.ready.order, state.ready.items, state.sheets); });
slots([]);
worker.postMessage({ act: "open" });
