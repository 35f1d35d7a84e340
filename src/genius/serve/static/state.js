// What the page shows, kept in the address: the back button, bookmarks and links to a result just work.
//
// Pictures do not fit in an address: they live in memory under a number, and are gone after a reload.

const pictures = new Map();
let next = 1;

export function keepPicture(blob, name) {
  const number = String(next++);
  pictures.set(number, { blob, name });
  return number;
}

export const picture = (number) => pictures.get(number) ?? null;

export const EMPTY = { q: "", pic: "", like: "", minus: "", target: "", where: "", mode: "", k: "24", codes: null, why: "", item: "" };

export function read() {
  const values = new URLSearchParams(location.hash.slice(1));
  const state = { ...EMPTY };
  for (const name of Object.keys(EMPTY)) if (values.has(name)) state[name] = values.get(name);
  return state;
}

export function address(state) {
  const values = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value === EMPTY[name] || value === null || value === undefined) continue;
    values.set(name, value);
  }
  return `#${values}`;
}

// Go there. Listeners of `hashchange` redraw; the same address again redraws as well (a retry).
export function go(changes, { replace = false } = {}) {
  const target = address({ ...read(), ...changes });
  if (target === (location.hash || "#")) window.dispatchEvent(new HashChangeEvent("hashchange"));
  else if (replace) {
    history.replaceState(null, "", target);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = target;
}
