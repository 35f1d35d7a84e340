// The operators of ONNX that the exported parts of GENIUS use, on typed arrays. A tensor is { dims, data }: float32 numbers,
// whole numbers as int32, truth as bytes. Nothing here is written into an input.

export const tensor = (dims, data) => ({ dims, data });
const size = (dims) => dims.reduce((product, n) => product * n, 1);
const like = (data, length) => new (data.constructor === Float32Array ? Float32Array : data.constructor)(length);
const axisOf = (axis, rank) => (axis < 0 ? axis + rank : axis);
const list = (t) => (t === undefined ? undefined : Array.from(t.data));

function stridesOf(dims) {
  const strides = new Array(dims.length);
  let step = 1;
  for (let i = dims.length - 1; i >= 0; i--) {
    strides[i] = step;
    step *= dims[i];
  }
  return strides;
}

function joint(shapes) {
  const rank = Math.max(...shapes.map((dims) => dims.length));
  return Array.from({ length: rank }, (_, i) => {
    let n = 1;
    for (const dims of shapes) {
      const own = dims[i - rank + dims.length] ?? 1;
      if (own !== 1) n = own;
    }
    return n;
  });
}

// For each place of `dims`, where a tensor of shape `own`, stretched to it, has its number.
function places(own, dims) {
  const strides = stridesOf(own), out = new Int32Array(size(dims)), rank = dims.length, shift = rank - own.length;
  const step = dims.map((_, i) => (i < shift || own[i - shift] === 1 ? 0 : strides[i - shift]));
  const count = new Int32Array(rank);
  let at = 0;
  for (let i = 0; i < out.length; i++) {
    out[i] = at;
    for (let d = rank - 1; d >= 0; d--) {
      at += step[d];
      if (++count[d] < dims[d]) break;
      at -= step[d] * dims[d];
      count[d] = 0;
    }
  }
  return out;
}

const same = (a, b) => a.length === b.length && a.every((n, i) => n === b[i]);

// Sums and products of like shapes, or of rows with one row, are most of the work between the matrices: loops of their own.
function quick(kind, x, y, out) {
  const n = out.length, m = y.length;
  if (kind === "add") for (let i = 0, j = 0; i < n; i++, j = j + 1 === m ? 0 : j + 1) out[i] = x[i] + y[j];
  else for (let i = 0, j = 0; i < n; i++, j = j + 1 === m ? 0 : j + 1) out[i] = x[i] * y[j];
}

const each = (act, make = null, kind = null) => ([a, b]) => {
  const dims = same(a.dims, b.dims) ? a.dims : joint([a.dims, b.dims]);
  const n = size(dims), x = a.data, y = b.data, out = make ? new make(n) : like(x, n);
  const rows = x.length === n && (y.length === n || y.length === 1 || same(b.dims, dims.slice(dims.length - b.dims.length)));
  if (kind !== null && rows && x instanceof Float32Array) quick(kind, x, y, out);
  else if (x.length === n && y.length === n) for (let i = 0; i < n; i++) out[i] = act(x[i], y[i]);
  else if (rows) for (let i = 0, j = 0, m = y.length; i < n; i++, j = j + 1 === m ? 0 : j + 1) out[i] = act(x[i], y[j]);
  else {
    const p = places(a.dims, dims), q = places(b.dims, dims);
    for (let i = 0; i < n; i++) out[i] = act(x[p[i]], y[q[i]]);
  }
  return tensor(dims, out);
};

const map = (act) => ([a]) => {
  const out = like(a.data, a.data.length);
  for (let i = 0; i < out.length; i++) out[i] = act(a.data[i]);
  return tensor(a.dims, out);
};

// c (n, m) += a (n, k) b (k, m), from places in larger arrays
function multiply(a, aAt, b, bAt, c, cAt, n, k, m) {
  for (let i = 0; i < n; i++) {
    const row = aAt + i * k, to = cAt + i * m;
    let p = 0;
    for (; p + 4 <= k; p += 4) {
      const a0 = a[row + p], a1 = a[row + p + 1], a2 = a[row + p + 2], a3 = a[row + p + 3];
      if (a0 === 0 && a1 === 0 && a2 === 0 && a3 === 0) continue;
      const b0 = bAt + p * m, b1 = b0 + m, b2 = b1 + m, b3 = b2 + m;
      for (let j = 0; j < m; j++) c[to + j] += a0 * b[b0 + j] + a1 * b[b1 + j] + a2 * b[b2 + j] + a3 * b[b3 + j];
    }
    for (; p < k; p++) {
      const value = a[row + p], from = bAt + p * m;
      for (let j = 0; j < m; j++) c[to + j] += value * b[from + j];
    }
  }
}

// the same with b (m, k): rows with rows
function dots(a, aAt, b, bAt, c, cAt, n, k, m) {
  for (let i = 0; i < n; i++)
    for (let j = 0; j < m; j++) {
      const row = aAt + i * k, other = bAt + j * k;
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0, p = 0;
      for (; p + 4 <= k; p += 4) {
        s0 += a[row + p] * b[other + p];
        s1 += a[row + p + 1] * b[other + p + 1];
        s2 += a[row + p + 2] * b[other + p + 2];
        s3 += a[row + p + 3] * b[other + p + 3];
      }
      for (; p < k; p++) s0 += a[row + p] * b[other + p];
      c[cAt + i * m + j] += s0 + s1 + (s2 + s3);
    }
}

// turned: b comes with its last two axes exchanged (onnx.js takes the exchange away)
function matmul([a, b], { turned = false }) {
  const k = a.dims.at(-1), n = a.dims.length > 1 ? a.dims.at(-2) : 1, m = b.dims.at(turned ? -2 : -1), act = turned ? dots : multiply;
  if (b.dims.length === 2) { // every row of a with the same matrix
    const rows = a.data.length / k, out = new Float32Array(rows * m);
    act(a.data, 0, b.data, 0, out, 0, rows, k, m);
    return tensor([...a.dims.slice(0, -1), m], out);
  }
  const batch = joint([a.dims.slice(0, -2), b.dims.slice(0, -2)]);
  const from = places(a.dims.slice(0, -2), batch), other = places(b.dims.slice(0, -2), batch);
  const out = new Float32Array(from.length * n * m);
  for (let i = 0; i < from.length; i++) act(a.data, from[i] * n * k, b.data, other[i] * k * m, out, i * n * m, n, k, m);
  return tensor([...batch, n, m], out);
}

function transpose([a], { perm }) {
  const rank = a.dims.length, order = perm?.length ? perm : [...Array(rank).keys()].reverse();
  const strides = stridesOf(a.dims), dims = order.map((i) => a.dims[i]), step = order.map((i) => strides[i]);
  const out = like(a.data, a.data.length), count = new Int32Array(rank);
  let at = 0;
  for (let i = 0; i < out.length; i++) {
    out[i] = a.data[at];
    for (let d = rank - 1; d >= 0; d--) {
      at += step[d];
      if (++count[d] < dims[d]) break;
      at -= step[d] * dims[d];
      count[d] = 0;
    }
  }
  return tensor(dims, out);
}

function gemm([a, b, c], { alpha = 1, beta = 1, transA = 0, transB = 0 }) {
  let out = matmul([transA ? transpose([a], {}) : a, b], { turned: transB === 1 });
  if (alpha !== 1) out = map((x) => alpha * x)([out]);
  return c === undefined ? out : each((x, y) => x + beta * y)([out, c]);
}

// act(row, from, step, n, out): over one axis; out has the input's shape
const along = (act) => ([a], { axis = -1 }) => {
  const at = axisOf(axis, a.dims.length), n = a.dims[at], step = size(a.dims.slice(at + 1)), out = new Float32Array(a.data.length);
  for (let i = 0; i < out.length; i += n * step) for (let j = 0; j < step; j++) act(a.data, i + j, step, n, out);
  return tensor(a.dims, out);
};

function largest(x, from, step, n) {
  let most = -Infinity;
  for (let i = 0; i < n; i++) most = Math.max(most, x[from + i * step]);
  return most;
}

const softmax = along((x, from, step, n, out) => {
  const most = largest(x, from, step, n);
  let sum = 0;
  for (let i = 0; i < n; i++) sum += out[from + i * step] = Math.exp(x[from + i * step] - most);
  for (let i = 0; i < n; i++) out[from + i * step] /= sum;
});

const logSoftmax = along((x, from, step, n, out) => {
  const most = largest(x, from, step, n);
  let sum = 0;
  for (let i = 0; i < n; i++) sum += Math.exp(x[from + i * step] - most);
  const shift = most + Math.log(sum);
  for (let i = 0; i < n; i++) out[from + i * step] = x[from + i * step] - shift;
});

const reduce = (start, act, end) => ([a, given], { axes, keepdims = 1, noop_with_empty_axes: noop = 0 }) => {
  let over = list(given) ?? axes;
  if (!over?.length) {
    if (noop) return a;
    over = [...a.dims.keys()];
  }
  const gone = new Set(over.map((axis) => axisOf(axis, a.dims.length)));
  const kept = a.dims.map((n, i) => (gone.has(i) ? 1 : n)), to = places(kept, a.dims), sums = new Float64Array(size(kept)).fill(start);
  for (let i = 0; i < a.data.length; i++) sums[to[i]] = act(sums[to[i]], a.data[i]);
  const n = a.data.length / Math.max(sums.length, 1), out = Float32Array.from(sums, (value) => end(value, n));
  return tensor(keepdims ? kept : a.dims.filter((_, i) => !gone.has(i)), out);
};

function layerNorm([x, weight, bias], { axis = -1, epsilon = 1e-5 }) {
  const n = size(x.dims.slice(axisOf(axis, x.dims.length))), out = new Float32Array(x.data.length);
  for (let at = 0; at < out.length; at += n) {
    let mean = 0, spread = 0;
    for (let i = 0; i < n; i++) mean += x.data[at + i];
    mean /= n;
    for (let i = 0; i < n; i++) spread += (x.data[at + i] - mean) ** 2;
    const scale = 1 / Math.sqrt(spread / n + epsilon);
    for (let i = 0; i < n; i++) out[at + i] = (x.data[at + i] - mean) * scale * weight.data[i] + (bias ? bias.data[i] : 0);
  }
  return tensor(x.dims, out);
}

function gather([a, index], { axis = 0 }) {
  const at = axisOf(axis, a.dims.length), n = a.dims[at], inner = size(a.dims.slice(at + 1)), outer = size(a.dims.slice(0, at));
  const count = index.data.length, out = like(a.data, outer * count * inner);
  for (let o = 0; o < outer; o++)
    for (let i = 0; i < count; i++) {
      const from = (o * n + (index.data[i] < 0 ? index.data[i] + n : index.data[i])) * inner;
      out.set(a.data.subarray(from, from + inner), (o * count + i) * inner);
    }
  return tensor([...a.dims.slice(0, at), ...index.dims, ...a.dims.slice(at + 1)], out);
}

function cut(a, starts, steps, dims) {
  const strides = stridesOf(a.dims), out = like(a.data, size(dims)), rank = dims.length, count = new Int32Array(rank);
  let at = starts.reduce((sum, start, i) => sum + start * strides[i], 0);
  for (let i = 0; i < out.length; i++) {
    out[i] = a.data[at];
    for (let d = rank - 1; d >= 0; d--) {
      at += strides[d] * steps[d];
      if (++count[d] < dims[d]) break;
      at -= strides[d] * steps[d] * dims[d];
      count[d] = 0;
    }
  }
  return tensor(dims, out);
}

function slice([a, from, to, axes, steps]) {
  const starts = a.dims.map(() => 0), dims = [...a.dims], by = a.dims.map(() => 1);
  const which = list(axes) ?? [...from.data.keys()];
  which.forEach((given, i) => {
    const axis = axisOf(given, a.dims.length), n = a.dims[axis], step = steps?.data[i] ?? 1;
    if (step < 0) throw new Error("slices backwards are not known here");
    const clip = (value) => Math.min(Math.max(value < 0 ? value + n : value, 0), n);
    const start = clip(from.data[i]);
    starts[axis] = start;
    by[axis] = step;
    dims[axis] = Math.max(0, Math.ceil((clip(to.data[i]) - start) / step));
  });
  return cut(a, starts, by, dims);
}

function split([a, sizes], { axis = 0, num_outputs: wanted }, outputs) {
  const at = axisOf(axis, a.dims.length), parts = wanted ?? outputs, even = Math.ceil(a.dims[at] / parts);
  const widths = list(sizes) ?? Array.from({ length: parts }, (_, i) => Math.min(even, a.dims[at] - i * even));
  let start = 0;
  return widths.map((width) => {
    const starts = a.dims.map(() => 0), dims = [...a.dims];
    starts[at] = start;
    dims[at] = width;
    start += width;
    return cut(a, starts, a.dims.map(() => 1), dims);
  });
}

function concat(parts, { axis }) {
  const at = axisOf(axis, parts[0].dims.length), outer = size(parts[0].dims.slice(0, at)), dims = [...parts[0].dims];
  dims[at] = parts.reduce((sum, part) => sum + part.dims[at], 0);
  const out = like(parts[0].data, size(dims)), row = out.length / outer;
  let to = 0;
  for (const part of parts) {
    const width = part.data.length / outer;
    for (let o = 0; o < outer; o++) out.set(part.data.subarray(o * width, (o + 1) * width), o * row + to);
    to += width;
  }
  return tensor(dims, out);
}

function conv([x, weight, bias], { strides = [1, 1], pads = [0, 0, 0, 0], group = 1, dilations = [1, 1] }) {
  if (group !== 1 || dilations.some((n) => n !== 1)) throw new Error("only plain convolutions are known here");
  const [batch, channels, height, width] = x.dims, [filters, , kh, kw] = weight.dims;
  const high = Math.floor((height + pads[0] + pads[2] - kh) / strides[0]) + 1;
  const wide = Math.floor((width + pads[1] + pads[3] - kw) / strides[1]) + 1;
  const area = high * wide, depth = channels * kh * kw, out = new Float32Array(batch * filters * area);
  const columns = new Float32Array(depth * area);
  for (let n = 0; n < batch; n++) {
    columns.fill(0);
    for (let c = 0; c < channels; c++)
      for (let i = 0; i < kh; i++)
        for (let j = 0; j < kw; j++) {
          const row = ((c * kh + i) * kw + j) * area;
          for (let y = 0; y < high; y++) {
            const sy = y * strides[0] + i - pads[0];
            if (sy < 0 || sy >= height) continue;
            const from = ((n * channels + c) * height + sy) * width;
            for (let k = 0; k < wide; k++) {
              const sx = k * strides[1] + j - pads[1];
              if (sx >= 0 && sx < width) columns[row + y * wide + k] = x.data[from + sx];
            }
          }
        }
    const at = n * filters * area;
    if (bias) for (let f = 0; f < filters; f++) out.fill(bias.data[f], at + f * area, at + (f + 1) * area);
    multiply(weight.data, 0, columns, 0, out, at, filters, depth, area);
  }
  return tensor([batch, filters, high, wide], out);
}

function reshape([a, shape], { allowzero = 0 }) {
  const dims = list(shape).map((n, i) => (n === 0 && !allowzero ? a.dims[i] : n)), open = dims.indexOf(-1);
  if (open >= 0) dims[open] = a.data.length / dims.reduce((product, n, i) => (i === open ? product : product * n), 1);
  return tensor(dims, a.data);
}

function unsqueeze([a, axes]) {
  const rank = a.dims.length + axes.data.length, at = new Set(list(axes).map((axis) => axisOf(axis, rank))), rest = [...a.dims];
  return tensor(Array.from({ length: rank }, (_, i) => (at.has(i) ? 1 : rest.shift())), a.data);
}

function squeeze([a, axes]) {
  const gone = new Set(list(axes)?.map((axis) => axisOf(axis, a.dims.length)) ?? [...a.dims.keys()].filter((i) => a.dims[i] === 1));
  return tensor(a.dims.filter((_, i) => !gone.has(i)), a.data);
}

function expand([a, shape]) {
  const dims = joint([a.dims, list(shape)]), from = places(a.dims, dims), out = like(a.data, from.length);
  for (let i = 0; i < out.length; i++) out[i] = a.data[from[i]];
  return tensor(dims, out);
}

function where([yes, a, b]) {
  const dims = joint([yes.dims, a.dims, b.dims]), n = size(dims), out = like(a.data.length >= b.data.length ? a.data : b.data, n);
  const p = places(yes.dims, dims), q = places(a.dims, dims), r = places(b.dims, dims);
  for (let i = 0; i < n; i++) out[i] = yes.data[p[i]] ? a.data[q[i]] : b.data[r[i]];
  return tensor(dims, out);
}

function pad([a, pads, value, axes]) {
  const rank = a.dims.length, which = (list(axes) ?? [...a.dims.keys()]).map((axis) => axisOf(axis, rank)), count = which.length;
  const before = a.dims.map(() => 0), dims = [...a.dims];
  which.forEach((axis, i) => {
    before[axis] = pads.data[i];
    dims[axis] += pads.data[i] + pads.data[i + count];
  });
  const strides = stridesOf(dims), out = like(a.data, size(dims)).fill(value ? value.data[0] : 0), own = stridesOf(a.dims);
  for (let i = 0; i < a.data.length; i++) {
    let at = 0;
    for (let d = 0; d < rank; d++) at += ((Math.floor(i / own[d]) % a.dims[d]) + before[d]) * strides[d];
    out[at] = a.data[i];
  }
  return tensor(dims, out);
}

function cast([a], { to }) {
  if (to === 9) return tensor(a.dims, Uint8Array.from(a.data, (x) => (x ? 1 : 0)));
  return tensor(a.dims, to === 6 || to === 7 ? new Int32Array(a.data) : new Float32Array(a.data));
}

function clip([a, low, high]) {
  const least = low ? low.data[0] : -Infinity, most = high ? high.data[0] : Infinity;
  return map((x) => Math.min(Math.max(x, least), most))([a]);
}

const gelu = ([a], { approximate = "none" }) => {
  if (approximate !== "tanh") throw new Error("of GELU only the approximation by tanh is known here");
  return map((x) => 0.5 * x * (1 + Math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))))([a]);
};

const many = (act) => (inputs) => inputs.reduce((a, b) => each(act)([a, b]));

export const OPS = {
  Add: each((x, y) => x + y, null, "add"), Sub: each((x, y) => x - y), Mul: each((x, y) => x * y, null, "mul"), Pow: each((x, y) => x ** y),
  Div: ([a, b]) => each(a.data instanceof Float32Array ? (x, y) => x / y : (x, y) => Math.trunc(x / y))([a, b]),
  Max: many(Math.max), Min: many(Math.min),
  Equal: each((x, y) => x === y, Uint8Array), Less: each((x, y) => x < y, Uint8Array), Greater: each((x, y) => x > y, Uint8Array),
  And: each((x, y) => x & y, Uint8Array), Not: map((x) => (x ? 0 : 1)),
  Relu: map((x) => (x > 0 ? x : 0)), Sigmoid: map((x) => 1 / (1 + Math.exp(-x))), Sqrt: map(Math.sqrt), Reciprocal: map((x) => 1 / x),
  Neg: map((x) => -x), Exp: map(Math.exp), Log: map(Math.log), Tanh: map(Math.tanh), Identity: ([a]) => a,
  MatMul: matmul, Gemm: gemm, Conv: conv, Transpose: transpose, Reshape: reshape, Unsqueeze: unsqueeze, Squeeze: squeeze,
  Expand: expand, Where: where, Pad: pad, Concat: concat, Split: split, Slice: slice, Gather: gather, Clip: clip, Cast: cast,
  Gelu: gelu, LayerNormalization: layerNorm, Softmax: softmax, LogSoftmax: logSoftmax,
  ReduceSum: reduce(0, (sum, x) => sum + x, (sum) => sum), ReduceMean: reduce(0, (sum, x) => sum + x, (sum, n) => sum / n),
  ReduceL2: reduce(0, (sum, x) => sum + x * x, Math.sqrt), ReduceMax: reduce(-Infinity, Math.max, (most) => most),
  Shape: ([a], { start = 0, end }) => { const dims = a.dims.slice(start, end); return tensor([dims.length], Int32Array.from(dims)); },
  Constant: (_, { value }) => value,
  ConstantOfShape: ([shape], { value }) => {
    const n = size(list(shape));
    return tensor(list(shape), value ? like(value.data, n).fill(value.data[0]) : new Float32Array(n));
  },
};
