// A query -> its hits: what genius.Index.search does, from a folder of files. Runs in a worker, a page or Node.

import { Session, Weights, halves } from "./onnx.js";
import { tensor } from "./ops.js";
import { Tokens } from "./tokens.js";
import { Collection } from "./collection.js";
import { Decoder, search } from "./beam.js";

const MODALITIES = ["image", "text", "pair"];
const MEANT = { image: [0, 2], text: [1, 2], pair: [2] }; // an image is anything with an image, a text anything with text
const DEPTH = 10; // hits that the probability of an answer looks at

export class Engine {
  // fetchBytes(name) -> Promise<Uint8Array> of a file of the folder, unpacked; onPart(name) after each
  static async open(fetchBytes, onPart = () => {}) {
    const engine = new Engine();
    const get = async (name) => { const bytes = await fetchBytes(name); onPart(name); return bytes; };
    const json = async (name) => JSON.parse(new TextDecoder().decode(await get(name)));
    const about = engine.about = await json("about.json");
    const steps = about.levels.map((_, level) => `step_${level}`), weights = get("decoder.bin").then((bytes) => new Weights(bytes));
    const own = ["text", "fusion"].map(async (name) => [name, new Session(await get(`${name}.onnx`))]);
    const sharing = ["start", "reconstruct", ...steps].map(async (name) => [name, new Session(await get(`${name}.onnx`), await weights)]);
    const parts = [...own, ...sharing];
    const [tokens, codes, items, ...sessions] = await Promise.all([json("tokens.json"), get("codes.bin"), json("items.json"), ...parts]);
    engine.parts = Object.fromEntries(sessions);
    engine.tokens = new Tokens(tokens);
    engine.items = items;
    const table = new Uint16Array(codes.buffer.slice(codes.byteOffset, codes.byteOffset + about.items * about.levels.length * 2));
    const order = new Uint32Array(codes.buffer.slice(codes.byteOffset + table.byteLength, codes.byteOffset + codes.byteLength));
    engine.collection = new Collection(table, order, about.levels.length);
    engine.decoder = new Decoder(engine.parts.start, steps.map((name) => engine.parts[name]));
    engine.codebooks = about.levels.map((_, level) => engine.parts.reconstruct.constants.get(`quantizer.codes_${level}`).data);
    engine.place = new Uint32Array(order.length); // of each item
    order.forEach((item, place) => { engine.place[item] = place; });
    if (about.vectors) engine.vectors = unpackHalves(await get("vectors.bin"));
    engine.modalities = new Set(engine.collection.children(0, 0, about.items).map(({ code }) => code));
    engine.later = async () => { engine.parts.image ??= new Session(await get("image.onnx")); };
    return engine;
  }

  codesOf(item) {
    const { codes, levels } = this.collection, at = this.place[item] * levels;
    return Array.from(codes.subarray(at, at + levels));
  }

  async picture(pixels) {
    await this.later();
    const side = this.about.pixels.size;
    return this.parts.image.run({ pixels: tensor([1, 3, side, side], pixels) }).vector.data;
  }

  // The query's two vectors, for one target modality (null: any)
  embed(text, image, target) {
    const asked = image ? (text ? 2 : 0) : 1, width = this.about.width;
    const instruction = target === null || !this.about.instructions ? "" : this.about.instructions[asked][target];
    const words = format([instruction, text].filter(Boolean).join(" "));
    let vector = new Float32Array(width);
    if (words) {
      const ids = Int32Array.from(this.tokens.encode(words)), mask = new Int32Array(ids.length).fill(1);
      vector = this.parts.text.run({ ids: tensor([1, ids.length], ids), mask: tensor([1, ids.length], mask) }).vector.data;
    }
    const found = this.parts.fusion.run({ image: tensor([1, width], image ?? new Float32Array(width)), text: tensor([1, width], vector) });
    return { z: found.z.data, dense: (found.dense ?? found.z).data };
  }

  // { text, image (the vector of `picture`), target ("image", "text", "pair" or null), k, search } -> { hits, answerable, looked }
  // search: "default" compares all, as Python does with so few items; "genius" has the items of the IDs that beams generate.
  ask({ text = "", image = null, target = null, k = 12, search: way = "default" }) {
    const meant = target === null ? [null] : MEANT[target].filter((modality) => this.modalities.has(modality));
    const modalities = meant.length ? meant : [MODALITIES.indexOf(target)];
    const parts = modalities.map((modality) => this.askFor(text, image, modality, k, way));
    const hits = parts.flatMap((part) => part.hits).sort((a, b) => b.score - a.score).slice(0, k);
    const sure = parts.map((part) => part.answerable).filter((p) => p !== null);
    return { hits, answerable: sure.length ? Math.max(...sure) : null, looked: parts.reduce((sum, part) => sum + part.looked, 0) };
  }

  askFor(text, image, modality, k, way) {
    const { z, dense } = this.embed(text, image, modality);
    const { lo, hi } = modality === null ? { lo: 0, hi: this.about.items } : this.collection.find([modality]);
    const sure = way === "default" ? this.about.confidence : null, wide = Math.min(sure ? Math.max(k, DEPTH) : k, hi - lo);
    const ranked = wide === 0 ? [] : way === "default" ? this.compared(z, dense, lo, hi, modality) : this.generated(z, modality, wide);
    const hits = ranked.slice(0, wide), pictured = image !== null;
    hits.forEach((hit, i) => { hit.probability = sure ? hitProbability(sure.hit, pictured, hit, i, hits[0].score) : null; });
    return { hits: hits.slice(0, k), answerable: sure ? answerProbability(sure.answer, pictured, hits) : null, looked: ranked.length };
  }

  // Everything in a range of places, best first: by stored vectors where the folder has them, else by what codes stand for; with
  // the log-probability of its modality, where none is asked for and several exist.
  compared(z, dense, lo, hi, modality) {
    const near = this.vectors ? (place) => this.dot(dense, this.collection.order[place]) : this.similarity(z);
    let prior = [0, 0, 0];
    if (modality === null && this.modalities.size > 1) {
      const logProbs = Array.from(this.modalityLogProbs(z));
      const likeliest = Math.max(...[...this.modalities].map((there) => logProbs[there])); // its items keep their similarity
      prior = logProbs.map((value) => value - likeliest);
    }
    const score = (place) => Math.fround(near(place) + prior[this.collection.code(place, 0)]);
    const out = Array.from({ length: hi - lo }, (_, i) => ({ place: lo + i, score: score(lo + i) }));
    return this.hits(out.sort((a, b) => b.score - a.score));
  }

  // log p of each modality that a query may want: by the model's probe, or by the decoder's first step.
  modalityLogProbs(z) {
    const { probe } = this.about;
    if (!probe) return this.decoder.read(this.decoder.begin(z), [[]]).logP;
    const logits = probe.weight.map((row, i) => row.reduce((sum, w, j) => sum + w * z[j], probe.bias[i])), most = Math.max(...logits);
    const total = most + Math.log(logits.reduce((sum, x) => sum + Math.exp(x - most), 0));
    return logits.map((x) => x - total);
  }

  // What is below the beams at the end of their IDs, by log p a code; wider beams where those hold too few.
  generated(z, modality, wanted) {
    for (let width = this.about.search.beams; ; width = Math.max(4 * width, wanted)) {
      let last = null;
      for (const found of search(this.decoder, this.collection, z, { beams: width, target: modality ?? -1 })) last = found;
      const all = last.beams.flatMap(({ lo, hi, score }) => Array.from({ length: hi - lo }, (_, i) => ({ place: lo + i, score: score / this.collection.levels })));
      if (all.length >= wanted || width >= this.about.items) return this.hits(all.sort((a, b) => b.score - a.score));
    }
  }

  hits = (ranked) => ranked.map(({ place, score }) => ({ item: this.collection.order[place], score, modality: this.collection.code(place, 0) }));

  dot(dense, item) {
    let score = 0;
    for (let i = 0, at = item * this.about.width; i < this.about.width; i++) score += dense[i] * this.vectors[at + i];
    return score;
  }

  // place -> cosine of z with what its codes stand for: one product for each row of each codebook, then a sum for each item.
  similarity(z) {
    const { width } = this.about, { levels } = this.collection;
    const products = this.codebooks.map((rows) => Float64Array.from({ length: rows.length / width }, (_, row) => { let dot = 0; for (let i = 0; i < width; i++) dot += z[i] * rows[row * width + i]; return dot; }));
    this.lengths ??= Float64Array.from({ length: this.about.items }, (_, place) => this.lengthOf(place));
    return (place) => {
      let dot = 0;
      for (let level = 0; level < levels; level++) dot += products[level][this.rowOf(place, level)];
      return dot / this.lengths[place];
    };
  }

  // Of a level's codebook: the row of an item's code.
  rowOf(place, level) {
    return this.collection.code(place, level) + this.collection.code(place, 0) * this.about.own_codebooks[level];
  }

  // Of the sum of the vectors that an item's codes stand for.
  lengthOf(place) {
    const { width } = this.about, { levels } = this.collection, sum = new Float64Array(width);
    for (let level = 0; level < levels; level++) {
      const rows = this.codebooks[level], at = this.rowOf(place, level) * width;
      for (let i = 0; i < width; i++) sum[i] += rows[at + i];
    }
    let square = 0;
    for (let i = 0; i < width; i++) square += sum[i] * sum[i];
    return Math.max(Math.sqrt(square), 1e-12);
  }

  // The ID being generated, for people to watch: yields the beams of every level.
  *generate({ text = "", image = null, target = null, beams = 10 }) {
    const modality = target === null ? null : MODALITIES.indexOf(target);
    const there = modality === null || this.modalities.has(modality) ? modality : MEANT[target].find((other) => this.modalities.has(other)) ?? null;
    yield* search(this.decoder, this.collection, this.embed(text, image, there).z, { beams, target: there ?? -1 });
  }
}

function unpackHalves(bytes) {
  const n = bytes.length / 2, bits = new Uint16Array(n);
  for (let i = 0; i < n; i++) bits[i] = bytes[i] | (bytes[n + i] << 8); // low bytes first, then the high ones
  return halves(bits);
}

export function format(text) {
  let plain = text.replaceAll("\r", "").trim().replace(/^"+|"+$/g, "");
  if (!plain) return "";
  const [first, ...rest] = plain;
  plain = first.toUpperCase() + rest.join("");
  return /[.?!]$/.test(plain) ? plain : `${plain}.`;
}

// genius.model.confidence
const sigmoid = (x) => 1 / (1 + Math.exp(-Math.min(Math.max(x, -30), 30)));
const groupOf = (pictured, modality) => (pictured ? 3 : 0) + modality;

function hitProbability(weights, pictured, hit, place, first) {
  const group = groupOf(pictured, hit.modality);
  return sigmoid(weights[group] + weights[6 + group] * hit.score + weights[12] * (hit.score - first) + weights[13] / (1 + place));
}

function answerProbability(weights, pictured, hits) {
  if (!hits.length) return 0;
  const scores = hits.slice(0, DEPTH).map((hit) => hit.score), others = scores.slice(1), group = groupOf(pictured, hits[0].modality);
  const mean = others.length ? others.reduce((a, b) => a + b, 0) / others.length : scores[0];
  const ahead = others.length ? [scores[0] - others[0], scores[0] - mean] : [0, 0];
  const gaps = weights.length === 14 ? [weights[12], weights[13]] : [weights[12 + group], weights[18 + group]]; // 14: older models
  return sigmoid(weights[group] + weights[6 + group] * scores[0] + gaps[0] * ahead[0] + gaps[1] * ahead[1]);
}
