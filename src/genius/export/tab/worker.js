// The search runs here, apart from the page, so that the page can draw while codes are generated.

import { Engine } from "./engine.js";
import { pixelsOf } from "./pixels.js";

let engine = null;
let total = 0;

async function bytes(name) {
  const answer = await fetch(`data/${name}.gz`);
  if (!answer.ok) throw new Error(`${name} is missing: ${answer.status}`);
  const whole = new Uint8Array(await answer.arrayBuffer());
  total += whole.length;
  // a host may say that the file is compressed, and the browser has unpacked it already
  if (whole[0] !== 0x1f || whole[1] !== 0x8b) return whole;
  return new Uint8Array(await new Response(new Blob([whole]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}

const shown = (hit) => ({ ...hit, ...engine.items[hit.item], codes: engine.codesOf(hit.item) });

const ACTS = {
  async open() {
    const began = performance.now();
    engine = await Engine.open(bytes, (name) => postMessage({ act: "part", name, total }));
    const { codes, order, levels } = engine.collection;
    postMessage({ act: "ready", about: engine.about, items: engine.items, codes, order, levels, ms: performance.now() - began, total });
  },

  async ask({ number, query }) {
    const began = performance.now();
    let image = null;
    if (query.picture) image = await engine.picture(pixelsOf(query.picture, engine.about.pixels));
    const asked = { text: query.text, image, target: query.target, k: query.k, search: query.search };
    const { hits, answerable, looked } = engine.ask(asked);
    postMessage({ act: "answer", number, hits: hits.map(shown), answerable, looked, search: query.search, ms: performance.now() - began });
    if (!query.watch) return;
    for (const { level, beams } of engine.generate(asked)) {
      const all = beams.map(({ codes, score, lo, hi, steps }) => ({ codes, score, lo, hi, steps }));
      postMessage({ act: "beams", number, level, beams: all });
    }
    postMessage({ act: "end", number });
  },
};

// One after another: a query that arrives while the model loads waits for it.
let before = Promise.resolve();
onmessage = ({ data }) => {
  before = before.then(() => ACTS[data.act](data)).catch((error) => postMessage({ act: "error", number: data.number, text: String(error.message ?? error) }));
};
