// Beam search over the IDs that exist, by log-probability and nothing else: what genius.search.beam does, for one query.
// The decoder is ONNX parts: `start` makes what is remembered of the query, `step_L` reads the codes so far and gives the
// log-probability of every code of level L.

import { tensor } from "./ops.js";

export class Decoder {
  // start, steps: sessions; steps has one for each level
  constructor(start, steps) {
    Object.assign(this, { start, steps });
  }

  begin(z) {
    const query = tensor([1, z.length], z);
    return { z: query, cross: this.start.run({ z: query }).cross, past: undefined };
  }

  // Beams of one modality: all their codes -> log-probabilities (beams x codes of the level), and what is remembered then.
  read(memory, codes) {
    const { z, cross, past } = memory, level = codes[0].length;
    const inputs = level === 0 ? { z, cross } : { z, cross, past, codes: tensor([codes.length, level], Int32Array.from(codes.flat())) };
    const { log_p, past_after } = this.steps[level].run(inputs);
    return { logP: log_p.data, wide: log_p.dims[1], memory: { z, cross, past: past_after } };
  }
}

// Rows of memory: beams go on from their parents.
function follow({ z, cross, past }, rows) {
  const [layers, two, n, ...inner] = past.dims;
  const block = inner.reduce((product, m) => product * m, 1), grown = new Float32Array(layers * two * rows.length * block);
  for (let outer = 0; outer < layers * two; outer++)
    rows.forEach((row, i) => {
      const from = (outer * n + row) * block;
      grown.set(past.data.subarray(from, from + block), (outer * rows.length + i) * block);
    });
  return { z, cross, past: tensor([layers, two, rows.length, ...inner], grown) };
}

// Yields { level, beams } after every level; the last one is the end. A beam: { codes, score, lo, hi, steps }, where
// steps has, for each code after the first, the log-probability of the code and of its best rivals under the same prefix.
// target: the first code, -1 to let the decoder generate it.
export function* search(decoder, collection, z, { beams: wide, target = -1 }) {
  const first = decoder.read(decoder.begin(z), [[]]);
  let beams = collection.children(0, 0, collection.items)
    .filter(({ code }) => target < 0 || code === target)
    .map(({ code, lo, hi }) => ({ codes: [code], score: target < 0 ? first.logP[code] : 0, lo, hi, steps: [], parent: 0 }));
  if (!beams.length) return;
  let memories = new Map(beams.map(({ codes }) => [codes[0], first.memory])); // of each modality: its beams in their order
  for (let level = 1; ; level++) {
    yield { level, beams };
    if (level === collection.levels) return;
    const lone = beams.every(({ lo, hi }) => collection.single(lo, hi)); // nothing can be displaced any more
    const { children, memories: read } = expand(decoder, collection, beams, memories, level);
    const ranked = children.sort((a, b) => b.score - a.score); // a stable sort
    beams = lone ? ranked : ranked.slice(0, wide);
    memories = new Map();
    for (const [modality, memory] of read) {
      const own = beams.filter(({ codes }) => codes[0] === modality);
      if (own.length) memories.set(modality, follow(memory, own.map(({ parent }) => parent)));
    }
  }
}

const RIVALS = 4;

// Every true child of every beam, with its score.
function expand(decoder, collection, beams, memories, level) {
  const children = [], after = new Map();
  for (const [modality, memory] of memories) {
    const own = beams.filter(({ codes }) => codes[0] === modality);
    const { logP, wide, memory: read } = decoder.read(memory, own.map(({ codes }) => codes));
    after.set(modality, read);
    own.forEach((beam, row) => {
      const next = collection.children(level, beam.lo, beam.hi).map(({ code, lo, hi }) => ({ code, logP: logP[row * wide + code], lo, hi }));
      const rivals = [...next].sort((a, b) => b.logP - a.logP).slice(0, RIVALS).map(({ code, logP: p, lo, hi }) => ({ code, logP: p, items: hi - lo }));
      for (const { code, logP: p, lo, hi } of next)
        children.push({ codes: [...beam.codes, code], score: beam.score + p, lo, hi, parent: row, steps: [...beam.steps, { code, logP: p, items: hi - lo, choices: next.length, rivals }] });
    });
  }
  return { children, memories: after };
}
