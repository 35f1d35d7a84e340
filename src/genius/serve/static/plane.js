// Items on a plane, alike ones near each other: dots everywhere, and as many faces as there is room for. The wheel, two fingers or
// the keyboard zoom, dragging moves, a click opens.
import { codeHue, h, number, plural, shorten } from "./dom.js";
import * as api from "./api.js";
import { gone } from "./changes.js";

const CELL = 62; // pixels that a face has for itself
const EDGE = 32; // that nothing stands in, so that no face is cut
const FARTHEST = 1, NEAREST = 40;
const WORDS_FROM = 2; // zoom from which texts are written out
const PRESS = 6; // pixels that a finger may move while it presses

class Plane {
  constructor(open) {
    this.open = open;
    this.view = { zoom: 1, x: 0, y: 0 };
    this.points = [];
    this.faces = new Map(); // id -> element
    this.canvas = h("canvas", { class: "plane-dots" });
    this.layer = h("div", { class: "plane-faces" });
    this.frame = h("div", { class: "plane", tabindex: "0", role: "application", "aria-label": "Items on a plane. Plus and minus zoom, arrow keys move, Enter opens what is in the middle." }, this.canvas, this.layer);
    this.middle = h("p", { class: "hint plane-middle", "aria-live": "polite" });
    this.pointers = new Map();
    this.moved = 0;
    new ResizeObserver(() => this.draw()).observe(this.frame);
    this.listen();
  }

  show(answer) {
    const found = new Map(answer.found.map((item, rank) => [item.id, { ...item, rank: rank + 1 }]));
    const others = answer.items.filter((item) => !found.has(item.id));
    this.points = [...found.values(), ...others.sort((a, b) => Boolean(b.thumbnail_url) - Boolean(a.thumbnail_url))].filter((item) => !gone(item.id));
    this.frame.dataset.items = this.points.length;
    this.frame.classList.toggle("asked", found.size > 0);
    this.layer.replaceChildren();
    this.faces.clear();
    this.draw();
  }

  at(point) {
    const { zoom, x, y } = this.view, across = this.frame.clientWidth - 2 * EDGE, down = this.frame.clientHeight - 2 * EDGE;
    return [(EDGE + point.x * across) * zoom + x, (EDGE + point.y * down) * zoom + y];
  }

  // Which points get a face: the first of each cell. Cells lie still while the plane is moved.
  chosen(width, high) {
    const taken = new Set(), out = [];
    for (const point of this.points) {
      if (!point.thumbnail_url && !point.rank && this.view.zoom < WORDS_FROM) continue;
      const [px, py] = this.at(point);
      if (px < -CELL || py < -CELL || px > width + CELL || py > high + CELL) continue;
      const column = Math.floor((px - this.view.x) / CELL), line = Math.floor((py - this.view.y) / CELL);
      const cell = `${column} ${line}`;
      if (taken.has(cell)) continue;
      taken.add(cell);
      out.push(point);
    }
    return out;
  }

  face(point) {
    const node = h("button", { type: "button", tabindex: "-1", class: `dot${point.rank ? " hit" : ""}`, "data-id": point.id, style: { "--hue": codeHue(1, point.codes[1] ?? 0) }, title: point.title, "aria-label": point.title, onclick: () => this.open(point) });
    if (point.thumbnail_url) {
      const image = h("img", { alt: "", draggable: "false", decoding: "async" });
      api.show(image, point.thumbnail_url);
      node.append(image);
    } else node.append(h("span", { class: "dot-words" }, shorten(point.title, 28)));
    if (point.rank) node.append(h("span", { class: "dot-rank" }, point.rank));
    return node;
  }

  draw() {
    const { clientWidth: width, clientHeight: high } = this.frame;
    if (!width) return;
    const dense = window.devicePixelRatio || 1, context = this.canvas.getContext("2d");
    this.canvas.width = width * dense;
    this.canvas.height = high * dense;
    context.scale(dense, dense);
    const asked = this.frame.classList.contains("asked");
    for (const point of this.points) {
      const [px, py] = this.at(point);
      if (px < 0 || py < 0 || px > width || py > high) continue;
      context.globalAlpha = asked && !point.rank ? 0.3 : 0.9;
      context.fillStyle = `hsl(${codeHue(1, point.codes[1] ?? 0)} 60% 52%)`;
      context.beginPath();
      context.arc(px, py, point.rank ? 6 : 3, 0, 7);
      context.fill();
    }
    const shown = new Set();
    for (const point of this.chosen(width, high)) {
      const [px, py] = this.at(point);
      shown.add(point.id);
      if (!this.faces.has(point.id)) {
        this.faces.set(point.id, this.face(point));
        this.layer.append(this.faces.get(point.id));
      }
      this.faces.get(point.id).style.setProperty("transform", `translate(${Math.round(px)}px, ${Math.round(py)}px)`);
    }
    for (const [id, node] of this.faces) {
      if (shown.has(id)) continue;
      node.remove();
      this.faces.delete(id);
    }
  }

  zoom(by, px = this.frame.clientWidth / 2, py = this.frame.clientHeight / 2) {
    const next = Math.min(NEAREST, Math.max(FARTHEST, this.view.zoom * by)), ratio = next / this.view.zoom;
    this.go(next, px - (px - this.view.x) * ratio, py - (py - this.view.y) * ratio);
  }

  // The plane never leaves its frame.
  go(zoom, x, y) {
    const within = (value, size) => Math.min(0, Math.max(size * (1 - zoom), value));
    this.view = { zoom, x: within(x, this.frame.clientWidth), y: within(y, this.frame.clientHeight) };
    this.draw();
  }

  nearest(px, py, most) {
    let best = null, least = most;
    for (const point of this.points) {
      const [x, y] = this.at(point), far = Math.hypot(x - px, y - py);
      if (far < least) [best, least] = [point, far];
    }
    return best;
  }

  inMiddle() {
    return this.nearest(this.frame.clientWidth / 2, this.frame.clientHeight / 2, Infinity);
  }

  listen() {
    const { frame } = this, where = (event) => {
      const box = frame.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    frame.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1.25 : 0.8, ...where(event));
    }, { passive: false });
    frame.addEventListener("pointerdown", (event) => {
      this.pointers.set(event.pointerId, where(event));
      this.moved = 0;
    });
    frame.addEventListener("pointermove", (event) => {
      const before = this.pointers.get(event.pointerId);
      if (!before) return;
      if (!event.buttons) return void this.pointers.delete(event.pointerId); // let go outside
      const now = where(event), [dx, dy] = [now[0] - before[0], now[1] - before[1]];
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
      this.pointers.set(event.pointerId, now);
      this.moved += Math.abs(dx) + Math.abs(dy);
      if (this.moved > PRESS) frame.setPointerCapture(event.pointerId); // not before: a press belongs to what was pressed
      if (other) this.zoom(Math.hypot(now[0] - other[0], now[1] - other[1]) / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1])), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      else this.go(this.view.zoom, this.view.x + dx, this.view.y + dy);
    });
    for (const name of ["pointerup", "pointercancel"]) frame.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    frame.addEventListener("click", (event) => {
      if (this.moved > PRESS) event.stopPropagation(); // it was moved, not pressed
      else if (event.target === this.canvas || event.target === this.layer) {
        const point = this.nearest(...where(event), 16);
        if (point) this.open(point);
      }
    }, { capture: true });
    frame.addEventListener("keydown", (event) => {
      const step = 60, { zoom, x, y } = this.view;
      const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
      if (event.key === "+" || event.key === "=") this.zoom(1.5);
      else if (event.key === "-") this.zoom(1 / 1.5);
      else if (event.key === "0") this.go(1, 0, 0);
      else if (moves[event.key]) this.go(zoom, x + moves[event.key][0], y + moves[event.key][1]);
      else if (event.key === "Enter" && this.points.length) this.open(this.inMiddle());
      else return;
      event.preventDefault();
      const point = this.inMiddle();
      this.middle.textContent = point ? `In the middle: “${shorten(point.title, 60)}”. Enter opens it.` : "";
    });
  }
}

export async function planeView(ids, open, signal) {
  const plane = new Plane(open), about = h("p", { class: "hint" });
  const answer = await api.map(ids, signal);
  about.textContent = `${number(answer.items.length)} of ${plural(answer.count, "item")}, by principal components. Distance is only a hint. Colours are second codes.`;
  plane.show(answer);
  const button = (label, act) => h("button", { type: "button", class: "plain small", onclick: act }, label);
  const buttons = h("div", { class: "row" }, button("Closer", () => plane.zoom(1.5)), button("Farther", () => plane.zoom(1 / 1.5)), button("Whole", () => plane.go(1, 0, 0)));
  return [about, buttons, plane.frame, plane.middle];
}
