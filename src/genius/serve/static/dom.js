// Small helpers to build elements. Text is always set as text, never as HTML: items may hold anything.

export const $ = (id) => document.getElementById(id);

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(path, viewBox = "0 0 24 24") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  element.setAttribute("viewBox", viewBox);
  element.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("d", path);
  element.append(line);
  return element;
}

export const number = (value) => new Intl.NumberFormat("en").format(value);
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
export const shorten = (text, length) => (text.length <= length ? text : `${text.slice(0, length - 1).trimEnd()}…`);

export const KINDS = { image: "image", text: "text", pair: "image + text" };
const LEVEL_0 = ["image", "text", "pair"];

// The first code of an ID says what the item is; the others are numbers.
export const codeName = (level, code) => (level === 0 ? LEVEL_0[code] ?? String(code) : String(code));

// Neighbouring codes get clearly different hues (golden angle), the same code always the same one.
export const codeHue = (level, code) => Math.round((code * 137.508 + level * 47) % 360);
