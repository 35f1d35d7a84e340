// Beam search over the IDs that exist, by log p and nothing else: what genius.search.beam does, for one question.
// The decoder is two ONNX parts: `start` makes what is remembered of the question, `step` reads a code and gives log p of the next.

import { tensor } from "./ops.js";

export class Decoder {
  constructor(start, step, about) {
    Object.assign(this, { start, step, about });
  }

  begin(z) {
    const { layers, heads, levels, d_kv: width } = this.about.decoder;
    const past = tensor([layers, 2, 1, heads, levels, width], new Float32Array(layers * 2 * heads * levels * width));
    return { cross: this.start.run({ z: tensor([1, z.length], z) }).cross, rest: tensor([1, z.length], z), past };
  }

  // Beams of one modality: their last codes -> log p (beams x widest level), and what is remembered then.
  read(memory, level, modality, codes) {
    const whole = (values) => tensor([values.length], Int32Array.from(values));
    const { log_p, rest_after: rest, past_after: past } = this.step.run({
      level: whole([level]), modality: whole([modality]), code: whole(codes), rest: memory.rest, cross: memory.cross, past: memory.past,
    });
    return { logP: log_p.data, wide: log_p.dims[1], memory: { cross: memory.cross, rest, past } };
  }
}

// Rows of memory: beams go on from their parents.
function follow(memory, rows) {
  const { past, rest } = memory, [layers, two, n, ...inner] = past.dims, width = rest.dims[1];
  const block = inner.reduce((product, m) => product * m, 1), grown = new Float32Array(layers * two * rows.length * block);
  for (let outer = 0; outer < layers * two; outer++)
    rows.forEach((row, i) => {
      const from = (outer * n + row) * block;
      grown.set(past.data.subarray(from, from + block), (outer * rows.length + i) * block);
    });
  const left = new Float32Array(rows.length * width);
  rows.forEach((row, i) => left.set(rest.data.subarray(row * width, (row + 1) * width), i * width));
  return { cross: memory.cross, past: tensor([layers, two, rows.length, ...inner], grown), rest: tensor([rows.length, width], left) };
}

// Yields { level, beams } after every level; the last one is the end. A beam: { codes, score, lo, hi, steps }, where
// steps has, for each code after the first, log p of the code and of its best rivals under the same prefix.
// target: the first code, -1 to let the decoder write it.
export function* search(decoder, collection, z, { beams: wide, target = -1 }) {
  const first = decoder.read(decoder.begin(z), 0, 0, [0]);
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
    const { logP, wide, memory: read } = decoder.read(memory, level, modality, own.map(({ codes }) => codes.at(-1)));
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
