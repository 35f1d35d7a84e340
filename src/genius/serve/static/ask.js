// The form: words, a picture (chosen, dropped or pasted), what kind of answer, a filter.
import { $, h, shorten } from "./dom.js";
import * as api from "./api.js";
import * as state from "./state.js";

const SIDE = 1024; // the server needs no more; a phone's photo becomes a quick upload
const ID_TYPE = "application/x-genius-id"; // dragging a result onto the page searches with it

let onProblem = () => {};

// A smaller copy of a picture, or the file itself where the browser cannot read it: then the server says why.
async function shrink(file) {
  if (file.size < 300_000) return file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const context = canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    const smaller = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
    return smaller && smaller.size < file.size ? smaller : file;
  } catch {
    return file;
  }
}

async function usePicture(file) {
  if (file.type && !file.type.startsWith("image/")) {
    onProblem(`“${file.name}” is not a picture. Drop a PNG, JPEG, WebP, GIF, BMP or AVIF file.`);
    return;
  }
  if (file.type === "image/svg+xml") {
    onProblem("SVG drawings are not accepted. Drop a PNG or JPEG of it instead.");
    return;
  }
  const pic = state.keepPicture(await shrink(file), file.name || "pasted picture");
  state.go({ ...asked(), pic, like: "" });
}

// What the form says now, searched or not.
const asked = () => ({
  q: $("text").value.trim(),
  where: $("where").value.trim(),
  k: $("k").value,
  target: document.querySelector("input[name=target]:checked").value,
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

// Show in the form what the address says.
export function fill(current) {
  if ($("text").value.trim() !== current.q) $("text").value = current.q;
  $("where").value = current.where;
  if (![...$("k").options].some((option) => option.value === current.k)) $("k").append(h("option", {}, current.k));
  $("k").value = current.k;
  for (const radio of document.getElementsByName("target")) radio.checked = radio.value === current.target;

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
  else $("text").placeholder = narrow ? "Describe it" : "Describe it, or drop a picture, or both";
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

function setUpDrop() {
  let depth = 0; // dragenter and dragleave fire for every element on the way
  const wanted = (event) => [...event.dataTransfer.types].some((type) => type === "Files" || type === ID_TYPE || type === "text/uri-list");
  const overlay = (visible) => ($("drop").hidden = !visible);
  document.addEventListener("dragenter", (event) => {
    if (!wanted(event)) return;
    event.preventDefault();
    depth += 1;
    overlay(true);
  });
  document.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (depth === 0) overlay(false);
  });
  document.addEventListener("dragover", (event) => wanted(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    depth = 0;
    overlay(false);
    if (!wanted(event)) return;
    event.preventDefault();
    const id = event.dataTransfer.getData(ID_TYPE);
    const file = [...event.dataTransfer.files][0];
    if (id) state.go({ ...asked(), like: id, pic: "" });
    else if (file) usePicture(file);
    else onProblem("That was a link, not a picture. Save the picture first, then drop the file: links are never fetched.");
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((candidate) => candidate.type.startsWith("image/"));
    if (!file) return;
    event.preventDefault();
    usePicture(file);
  });
}

export const dragId = (event, id) => {
  event.dataTransfer.setData(ID_TYPE, id);
  event.dataTransfer.effectAllowed = "copy";
};

export function setUpAsk(problem) {
  onProblem = problem;
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("file").addEventListener("change", () => {
    if ($("file").files[0]) usePicture($("file").files[0]);
    $("file").value = ""; // the same file may be chosen again
  });
  $("chosen-remove").addEventListener("click", () => {
    state.go({ ...asked(), pic: "", like: "" });
    $("text").focus();
  });
  $("chosen-image").addEventListener("error", () => ($("chosen-image").hidden = true));
  for (const radio of document.getElementsByName("target")) radio.addEventListener("change", submit);
  $("k").addEventListener("change", submit);
  setUpDrop();
}
