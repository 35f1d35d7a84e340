// Dragging and pasting: pictures from outside, or a result of this page, onto one of two places. Knows where something was let go,
// not what is done with it.
import { $ } from "./dom.js";

const ID_TYPE = "application/x-genius-id";
const LABELS = { file: ["Search with it", "Add to the collection"], item: ["Find what is like it", "Delete it"] };

let dragged = null; // the result that is on its way

export function dragItem(event, item) {
  dragged = item;
  event.dataTransfer.setData(ID_TYPE, item.id);
  event.dataTransfer.effectAllowed = "copyMove";
}

const zones = () => [...$("drop").children];
const wanted = (event) => [...event.dataTransfer.types].some((type) => type === "Files" || type === ID_TYPE || type === "text/uri-list");

function zoneAt(event) {
  const inside = ({ left, right, top, bottom }) => event.clientX >= left && event.clientX <= right && event.clientY >= top && event.clientY <= bottom;
  return zones().find((zone) => inside(zone.getBoundingClientRect())) ?? null;
}

function overlay(event, refusal) {
  const kind = [...event.dataTransfer.types].includes(ID_TYPE) ? "item" : "file";
  const [search, change] = zones();
  search.textContent = LABELS[kind][0];
  change.textContent = refusal || LABELS[kind][1];
  change.classList.toggle("off", Boolean(refusal));
  $("drop").classList.toggle("deleting", kind === "item");
  $("drop").hidden = false;
}

// `todo`: search(file), like(item), add(files), remove(item), problem(text), refusal() (why nothing can be changed, or "")
export function setUpDrop(todo) {
  let depth = 0; // dragenter and dragleave fire for every element on the way
  const adding = () => $("add-dialog").open;
  document.addEventListener("dragenter", (event) => {
    if (!wanted(event)) return;
    event.preventDefault();
    depth += 1;
    if (!adding()) overlay(event, todo.refusal());
  });
  document.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (depth === 0) $("drop").hidden = true;
  });
  document.addEventListener("dragover", (event) => {
    if (!wanted(event)) return;
    event.preventDefault();
    const over = zoneAt(event);
    for (const zone of zones()) zone.classList.toggle("over", zone === over);
  });
  document.addEventListener("dragend", () => (dragged = null));
  document.addEventListener("drop", (event) => {
    if (!wanted(event)) return;
    event.preventDefault();
    const zone = zoneAt(event), change = zone?.dataset.zone === "change"; // read before the overlay is gone
    depth = 0;
    $("drop").hidden = true;
    const files = [...event.dataTransfer.files], id = event.dataTransfer.getData(ID_TYPE);
    if (id) return change ? todo.remove(dragged ?? { id }) : todo.like({ id });
    if (!files.length) return todo.problem("That was a link, not an image. Save the image first, then drop the file: links are never fetched.");
    if (adding() || change || files.length > 1) return todo.add(files);
    return todo.search(files[0]);
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])].filter((candidate) => candidate.type.startsWith("image/"));
    if (!files.length) return;
    event.preventDefault();
    if (adding()) todo.add(files);
    else todo.search(files[0]);
  });
}
