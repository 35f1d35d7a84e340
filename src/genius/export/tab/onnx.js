// Reads an ONNX file and runs it: as much of the format as the exported parts of GENIUS need, on one thread, in plain
// JavaScript. What depends on weights alone is computed once, when a file is opened. The operators are in ops.js.

import { OPS, tensor } from "./ops.js";

const TYPES = { 1: Float32Array, 2: Uint8Array, 3: Int8Array, 9: Uint8Array };

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
  }

  varint() {
    let value = 0n, shift = 0n;
    for (;;) {
      const byte = this.bytes[this.at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return BigInt.asIntN(64, value);
      shift += 7n;
    }
  }

  // Calls found(field, value) for each field of a message: a BigInt, four or eight bytes, or a slice.
  fields(found) {
    while (this.at < this.bytes.length) {
      const key = Number(this.varint()), field = key >>> 3, kind = key & 7;
      if (kind === 0) found(field, this.varint());
      else if (kind === 2) {
        const length = Number(this.varint());
        found(field, this.bytes.subarray(this.at, this.at + length));
        this.at += length;
      } else if (kind === 5) {
        found(field, this.view.getFloat32(this.at, true));
        this.at += 4;
      } else if (kind === 1) {
        found(field, this.view.getFloat64(this.at, true));
        this.at += 8;
      } else throw new Error(`not an ONNX file: a field of kind ${kind}`);
    }
  }
}

const read = (bytes, found) => new Reader(bytes).fields(found);
const text = (bytes) => new TextDecoder().decode(bytes);

// int64 as the nearest int32: sizes and codes are small, and the largest of all only ever means "to the end"
const small = (value) => Number(value > 2147483647n ? 2147483647n : value < -2147483648n ? -2147483648n : value);

function whole(value, into) {
  if (typeof value === "bigint") into.push(small(value));
  else {
    const packed = new Reader(value);
    while (packed.at < value.length) into.push(small(packed.varint()));
  }
}

let table = null;

// Numbers of half precision, given as their bits
export function halves(bits) {
  if (table === null) table = Float32Array.from({ length: 65536 }, (_, i) => half(i));
  const out = new Float32Array(bits.length);
  for (let i = 0; i < out.length; i++) out[i] = table[bits[i]];
  return out;
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return exponent === 31 ? (fraction ? NaN : sign * Infinity) : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

// Weights that several graphs share: a file, the tensors that were read from it, and what was computed of them alone.
export class Weights {
  constructor(bytes) {
    this.bytes = bytes;
    this.tensors = new Map();
    this.computed = new Map();
    this.numbers = new WeakMap(); // of tensors that are here, or were computed of such
  }

  number(value) {
    if (!this.numbers.has(value)) this.numbers.set(value, ++this.count);
    return this.numbers.get(value);
  }

  count = 0;

  tensor(kind, dims, offset, length) {
    const key = `${kind} ${dims} ${offset}`;
    if (!this.tensors.has(key)) {
      const value = tensor(dims, numbers(kind, this.bytes.slice(offset, offset + length), [], []));
      this.number(value);
      this.tensors.set(key, value);
    }
    return this.tensors.get(key);
  }

  // What names a computation in every graph: undefined where an input is a graph's own, unless it is a few numbers.
  key(node, inputs) {
    const names = inputs.map((value) => {
      if (value === undefined) return "";
      if (this.numbers.has(value)) return this.numbers.get(value);
      return value.data.length <= 16 ? `${value.dims}:${value.data}` : undefined;
    });
    const known = names.some((name) => typeof name === "number") && !names.includes(undefined);
    return known ? JSON.stringify([node.type, node.given, names]) : undefined;
  }
}

function tensorOf(bytes, weights = null) {
  const dims = [], ints = [], floats = [], outside = {};
  let kind = 0, name = "", raw = null;
  read(bytes, (field, value) => {
    if (field === 1) whole(value, dims);
    else if (field === 2) kind = Number(value);
    else if (field === 4) floats.push(value);
    else if (field === 5 || field === 7) whole(value, ints);
    else if (field === 8) name = text(value);
    else if (field === 9) raw = value.slice(); // aligned
    else if (field === 13) {
      const entry = [];
      read(value, (_, found) => entry.push(text(found)));
      outside[entry[0]] = entry[1];
    }
  });
  if (outside.location) return { name, value: weights.tensor(kind, dims, Number(outside.offset), Number(outside.length)) };
  return { name, value: tensor(dims, numbers(kind, raw, ints, floats)) };
}

function numbers(kind, raw, ints, floats) {
  if (raw === null) return kind === 1 ? Float32Array.from(floats.flatMap((f) => (typeof f === "number" ? [f] : [...new Float32Array(f.slice().buffer)]))) : Int32Array.from(ints);
  if (kind === 7) return Int32Array.from(new BigInt64Array(raw.buffer), small);
  if (kind === 6) return new Int32Array(raw.buffer);
  if (kind === 10) {
    return halves(new Uint16Array(raw.buffer));
  }
  if (!TYPES[kind]) throw new Error(`numbers of ONNX's kind ${kind} are not read`);
  return new TYPES[kind](raw.buffer);
}

function attributeOf(bytes) {
  const out = { name: "", ints: [], floats: [] };
  let value;
  read(bytes, (field, found) => {
    if (field === 1) out.name = text(found);
    else if (field === 2) value = found;
    else if (field === 3) value = small(found);
    else if (field === 4) value = text(found);
    else if (field === 5) value = tensorOf(found).value;
    else if (field === 7) typeof found === "number" ? out.floats.push(found) : out.floats.push(...new Float32Array(found.slice().buffer));
    else if (field === 8) whole(found, out.ints);
  });
  return [out.name, value ?? (out.ints.length ? out.ints : out.floats)];
}

function nodeOf(bytes) {
  const node = { inputs: [], outputs: [], type: "", given: {} };
  read(bytes, (field, value) => {
    if (field === 1) node.inputs.push(text(value));
    else if (field === 2) node.outputs.push(text(value));
    else if (field === 4) node.type = text(value);
    else if (field === 5) {
      const [name, given] = attributeOf(value);
      node.given[name] = given;
    }
  });
  return node;
}

// A matrix that is turned over only to be multiplied with is not turned over: the product reads its rows as columns.
function withoutTurns(nodes, outputs) {
  const makers = new Map(nodes.map((node) => [node.outputs[0], node])), uses = new Map();
  for (const name of [...outputs, ...nodes.flatMap((node) => node.inputs)]) uses.set(name, (uses.get(name) ?? 0) + 1);
  const gone = new Set();
  for (const node of nodes) {
    const turn = node.type === "MatMul" ? makers.get(node.inputs[1]) : undefined;
    if (turn?.type !== "Transpose" || uses.get(turn.outputs[0]) !== 1) continue;
    const { perm } = turn.given, last = perm.length - 1;
    if (perm[last] !== last - 1 || perm[last - 1] !== last || perm.slice(0, -2).some((axis, i) => axis !== i)) continue;
    node.inputs[1] = turn.inputs[0];
    node.given.turned = true;
    gone.add(turn);
  }
  return nodes.filter((node) => !gone.has(node));
}

export class Session {
  // bytes: a whole ONNX file; weights: those that it shares with others
  constructor(bytes, weights = null) {
    this.weights = weights;
    this.constants = new Map();
    this.nodes = [];
    this.outputs = [];
    const nodes = [];
    let graph = null;
    read(bytes, (field, value) => { if (field === 7) graph = value; });
    if (graph === null) throw new Error("not an ONNX file");
    read(graph, (field, value) => {
      if (field === 1) nodes.push(nodeOf(value));
      else if (field === 5) {
        const { name, value: given } = tensorOf(value, weights);
        this.constants.set(name, given);
      } else if (field === 12) read(value, (inner, found) => { if (inner === 1) this.outputs.push(text(found)); });
    });
    for (const node of withoutTurns(nodes, this.outputs)) {
      if (!OPS[node.type]) throw new Error(`the operator ${node.type} is not known here`);
      const known = node.inputs.every((name) => name === "" || this.constants.has(name));
      if (known) this.fold(node);
      else this.nodes.push(node);
    }
    const used = new Set([...this.outputs, ...this.nodes.flatMap((node) => node.inputs)]);
    for (const name of this.constants.keys()) if (!used.has(name)) this.constants.delete(name); // int8 twins and the like
  }

  // What depends on weights alone; of shared weights, once for all graphs.
  fold(node) {
    const key = this.weights?.key(node, node.inputs.map((name) => this.constants.get(name)));
    const known = key === undefined ? undefined : this.weights.computed.get(key);
    if (known) known.forEach((value, i) => this.constants.set(node.outputs[i], value));
    else this.compute(node, this.constants);
    if (key === undefined || known) return;
    const made = node.outputs.map((name) => this.constants.get(name));
    made.forEach((value) => this.weights.number(value));
    this.weights.computed.set(key, made);
  }

  compute(node, values) {
    const inputs = node.inputs.map((name) => (name === "" ? undefined : values.get(name) ?? this.constants.get(name)));
    const results = OPS[node.type](inputs, node.given, node.outputs.length);
    (Array.isArray(results) ? results : [results]).forEach((result, i) => values.set(node.outputs[i], result));
  }

  // inputs: name -> tensor; gives name -> tensor
  run(inputs) {
    const values = new Map(Object.entries(inputs));
    for (const node of this.nodes) this.compute(node, values);
    return Object.fromEntries(this.outputs.map((name) => [name, values.get(name) ?? this.constants.get(name)]));
  }
}
