// What lives under a prefix of codes: the next codes with a few of their items, then the items themselves.
import { codeHue, codeName, h, number, plural } from "./dom.js";
import { EMPTY, address } from "./state.js";
import { face, grid, notice } from "./results.js";

const link = (prefix) => address({ ...EMPTY, codes: prefix });

function crumbs(answer) {
  const steps = answer.path.map((step, level) => {
    const last = level === answer.path.length - 1;
    const chip = h("span", { class: "code", style: { "--hue": codeHue(level, step.code) } }, codeName(level, step.code));
    return h("li", {}, last ? h("span", { "aria-current": "page" }, chip) : h("a", { href: link(step.prefix) }, chip));
  });
  const all = answer.path.length ? h("a", { href: link("") }, "All") : h("span", { "aria-current": "page" }, "All");
  return h("nav", { class: "crumbs", "aria-label": "Codes so far" }, h("ol", {}, h("li", {}, all), steps));
}

function tile(child, level, most) {
  const name = codeName(level, child.code);
  const share = Math.max(0.03, child.count / most);
  return h(
    "li",
    {},
    h(
      "a",
      { class: "tile", href: link(child.prefix), "data-prefix": child.prefix, "aria-label": `Code ${name}: ${plural(child.count, "item")}` },
      h("span", { class: "faces" }, child.examples.slice(0, 4).map((item) => face(item, { size: "small" }))),
      h(
        "span",
        { class: "tile-foot" },
        h("span", { class: "code", style: { "--hue": codeHue(level, child.code) } }, name),
        h("span", { class: "many" }, number(child.count)),
      ),
      h("span", { class: "bar" }, h("span", { style: { width: `${(share * 100).toFixed(1)}%` } })),
    ),
  );
}

export function codesView(answer, open, selected) {
  if (answer.count === 0) {
    return [notice({ title: "This index is empty", lines: ["Once it holds items, their codes can be browsed here."] })];
  }
  const root = answer.level === 0;
  const title = root ? "The first code of every ID is the modality" : `${plural(answer.count, "item")} below this prefix`;
  const parts = [crumbs(answer), h("h2", { class: "codes-title", id: "codes-title", tabindex: "-1" }, title)];
  if (root) {
    parts.push(h("p", { class: "hint" }, `An ID is ${answer.levels} codes, coarse to fine: items that share the first codes are similar. Open a code to go down.`));
  }
  if (answer.children.length) {
    const most = answer.children[0].count;
    const rest = answer.children_total - answer.children.length;
    parts.push(
      h("h3", {}, root ? "First code" : `Code ${answer.level + 1} of ${answer.levels}: ${plural(answer.children_total, "way", "ways")} on`),
      h("ul", { class: root ? "tiles first" : "tiles" }, answer.children.map((child) => tile(child, answer.level, most))),
    );
    if (rest > 0) parts.push(h("p", { class: "hint" }, `and ${number(rest)} smaller ones`));
  }
  if (answer.items.length && !root) {
    const all = answer.items.length === answer.count;
    parts.push(h("h3", {}, all ? "Items here" : `Items here, the first ${number(answer.items.length)}`), grid(answer.items, { open, label: "Items under this code", selected }));
  }
  return parts;
}
