// Why these hits: the plan that found them, and the ID that a beam search generates, level by level. Each code is a card with
// what lives below it and how likely it was; choosing a card lights the path that leads to it and what follows it.
import { codeHue, codeName, h, number, plural } from "./dom.js";
import * as api from "./api.js";
import { EMPTY, address } from "./state.js";
import { notice } from "./results.js";

const percent = (logP) => {
  const p = 100 * Math.exp(logP);
  return p >= 0.1 ? `${p.toFixed(p < 10 ? 1 : 0)} %` : "under 0.1 %";
};
const starts = (whole, beginning) => beginning.every((code, i) => whole[i] === code);

function examples(code, thumbnails) {
  const pictures = code.examples.filter((id) => thumbnails[id]).slice(0, 3);
  return h("span", { class: "mini" }, pictures.map((id) => {
    const image = h("img", { alt: "", loading: "lazy" });
    api.show(image, thumbnails[id]);
    return image;
  }));
}

function card(code, level, total, thumbnails, choose) {
  const name = codeName(level, code.prefix.at(-1)), words = code.words.slice(0, 3).join(", ");
  const given = code.log_p === null ? "given by the query" : `log p ${code.log_p.toFixed(2)}`;
  const share = `${plural(code.items, "item")}${total ? `, ${percent(Math.log(code.items / total))} of all` : ""}`;
  const kept = code.kept ? (code.rank ? `beam ${code.rank}` : "kept") : "rejected";
  return h(
    "li",
    { class: `why-card ${code.kept ? "" : "out"} ${code.answer ? "answer" : ""}`, "data-prefix": code.prefix.join("-") },
    h(
      "button",
      { type: "button", onclick: () => choose(code.prefix), "aria-label": `Code ${name}, ${kept}, ${given}, ${share}${words ? `, ${words}` : ""}` },
      h("span", { class: "why-head" }, h("span", { class: "code", style: { "--hue": codeHue(level, code.prefix.at(-1)) } }, name), h("span", { class: "why-rank" }, kept)),
      examples(code, thumbnails),
      words ? h("span", { class: "why-words" }, words) : null,
      h("span", { class: "why-facts" }, given, code.log_p === null ? "" : ` (${percent(code.log_p)})`, h("br"), share),
    ),
  );
}

function beamTrace(trace, total, thumbnails) {
  const columns = trace.steps.map((step) => {
    return h(
      "li",
      { class: "why-step" },
      h("h3", {}, step.level === 0 ? "Modality" : `Code ${step.level + 1}`),
      h("p", { class: "hint" }, `${number(step.competing)} could follow, ${number(step.beams)} kept, ${plural(step.items, "item")} left`),
      h("ol", { class: "why-cards" }, step.codes.map((code) => card(code, step.level, total, thumbnails, choose))),
    );
  });
  const where = h("p", { class: "hint why-path", "aria-live": "polite" });
  const list = h("ol", { class: "why-steps", tabindex: "0", "aria-label": "Codes of every level" }, columns);

  function choose(prefix) {
    for (const one of list.querySelectorAll(".why-card")) {
      const own = one.dataset.prefix.split("-").map(Number);
      one.classList.toggle("on", starts(prefix, own) || starts(own, prefix));
      one.classList.toggle("off", !(starts(prefix, own) || starts(own, prefix)));
    }
    const label = prefix.map((code, level) => codeName(level, code)).join(" → ");
    where.replaceChildren(`${label}. `, h("a", { href: address({ ...EMPTY, codes: prefix.join("-") }) }, "Show all items below it"));
  }

  return h("section", { class: "why" }, list, where);
}

const kindsOf = { image: "images", text: "texts", pair: "image-text pairs" };

export async function whyView(request, picture, total, signal) {
  const answer = await api.explain({ ...request, k: 5 }, picture, signal);
  if (!answer.answers.length) return [notice({ title: "Nothing to explain", lines: ["No result was found."] })];
  const parts = [h("h2", {}, "Why these results")];
  parts.push(h("p", { class: "hint" }, answer.summary));
  if (!answer.fitted) parts.push(h("p", { class: "hint" }, "So few items are all compared with the query, and the most similar come first."));
  else if (answer.plan !== "beam") parts.push(h("p", { class: "hint" }, "The codes decided nothing here. This is how a beam search would generate the ID."));
  if (answer.traces.length) parts.push(h("p", { class: "hint" }, "log p is the log-probability of a code, given the codes before it; the percentage in brackets is the same number. A coloured frame marks a code that leads to a result, a dashed one a code that was rejected."));
  for (const trace of answer.traces) {
    if (answer.traces.length > 1) parts.push(h("h3", { class: "why-kind" }, trace.target ? `Among ${kindsOf[trace.target]}` : "Among everything"));
    parts.push(beamTrace(trace, total, answer.thumbnails));
  }
  return parts;
}
