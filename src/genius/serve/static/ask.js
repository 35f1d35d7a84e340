// The form: words, a picture (chosen, dropped or pasted), what kind of answer, a filter.
import { $, h, shorten } from "./dom.js";
import * as api from "./api.js";
import * as state from "./state.js";
import { shrink, unusable } from "./pictures.js";

let onProblem = () => {};
let defaultTarget = "image"; // what the server looks for where the address names no target
let filled = {}; // what the address said last

export async function searchWith(file) {
  const problem = unusable(file);
  if (problem) return onProblem(problem);
  const pic = state.keepPicture(await shrink(file), file.name || "pasted image");
  state.go({ ...asked(), pic, like: "" });
}

export const searchLike = ({ id }) => state.go({ ...asked(), like: id, pic: "" });

export function setDefaultTarget(target) {
  defaultTarget = target ?? "image";
}

// The default target is left out of the address.
function chosenTarget() {
  const chosen = document.querySelector("input[name=target]:checked").value;
  return chosen === defaultTarget ? "" : chosen;
}

// What the form says now, searched or not.
const asked = () => ({
  q: $("text").value.trim(),
  where: $("where").value.trim(),
  k: $("k").value,
  mode: $("mode").value,
  target: chosenTarget(),
  codes: null,
  item: "",
});

function submit() {
  const current = state.read();
  const changes = asked();
  if (!changes.q && !current.pic && !current.like) {
    if (changes.where !== current.where || changes.target !== current.target) state.go(changes, { replace: true });
    $("text").focus();
    return;
  }
  state.go(changes);
}

// Show in the form what the address says. Words typed since then stay until the address has others: pages are drawn while people type.
export function fill(current) {
  if (current.q !== filled.q && $("text").value.trim() !== current.q) $("text").value = current.q;
  if (current.where !== filled.where) $("where").value = current.where;
  filled = { q: current.q, where: current.where };
  $("mode").value = current.mode;
  if (![...$("k").options].some((option) => option.value === current.k)) $("k").append(h("option", {}, current.k));
  $("k").value = current.k;
  for (const radio of document.getElementsByName("target")) radio.checked = radio.value === (current.target || defaultTarget);

  const image = $("chosen-image");
  const picture = current.pic ? state.picture(current.pic) : null;
  $("chosen").hidden = !picture && !current.like;
  if (picture) {
    if (image.dataset.pic !== current.pic) {
      image.src = URL.createObjectURL(picture.blob);
      image.dataset.pic = current.pic;
    }
    $("chosen-name").textContent = picture.name;
    image.hidden = false;
  } else if (current.like) {
    delete image.dataset.pic;
    showLike(current.like);
  } else {
    delete image.dataset.pic;
  }
  const narrow = matchMedia("(max-width: 560px)").matches;
  if (picture || current.like) $("text").placeholder = narrow ? "… but different how?" : "… but what should be different? (optional)";
  else $("text").placeholder = narrow ? "Describe it" : "Describe it, or drop an image, or both";
}

// "like this item": its picture, or its words where it has none.
async function showLike(id) {
  const image = $("chosen-image");
  image.hidden = true;
  $("chosen-name").textContent = `like ${id}`;
  try {
    const item = await api.item(id);
    if (state.read().like !== id) return; // the user went on
    if (item.text) $("chosen-name").textContent = `like “${shorten(item.text, 60)}”`;
    if (item.thumbnail_url) {
      image.hidden = false;
      api.show(image, item.thumbnail_url);
    }
  } catch {
    // the search itself says what is wrong
  }
}

// Whether words can be searched, too: only where the index has a full-text index.
export const offerWords = (words) => ($("mode-field").hidden = !words.length);

// Metadata fields as buttons that start a filter.
export function offerFields(fields) {
  const names = Object.entries(fields).slice(0, 12);
  if (!names.length) return;
  $("where").placeholder = exampleFilter(...names[0]);
  $("fields").replaceChildren(
    h("span", {}, "Fields:"),
    ...names.map(([name, type]) =>
      h("button", { type: "button", title: `${name}: ${type}`, onclick: () => startFilter(name, type) }, name),
    ),
  );
}

const isText = (type) => /str|utf8|text/i.test(type);
const exampleFilter = (name, type) => (isText(type) ? `${name} = '…'` : /bool/i.test(type) ? name : `${name} > 0`);

function startFilter(name, type) {
  const box = $("where");
  const before = box.value.trim() ? `${box.value.trim()} AND ` : "";
  box.value = `${before}${isText(type) ? `${name} = ''` : /bool/i.test(type) ? name : `${name} > `}`;
  box.focus();
  const end = isText(type) ? box.value.length - 1 : box.value.length;
  box.setSelectionRange(end, end);
}

export function setUpAsk(problem) {
  onProblem = problem;
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("file").addEventListener("change", () => {
    if ($("file").files[0]) searchWith($("file").files[0]);
    $("file").value = ""; // the same file may be chosen again
  });
  $("chosen-remove").addEventListener("click", () => {
    state.go({ ...asked(), pic: "", like: "" });
    $("text").focus();
  });
  $("chosen-image").addEventListener("error", () => ($("chosen-image").hidden = true));
  for (const radio of document.getElementsByName("target")) radio.addEventListener("change", submit);
  $("k").addEventListener("change", submit);
  $("mode").addEventListener("change", submit);
}
