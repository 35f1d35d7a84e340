// A picture -> what the encoder's picture tower reads: the longer side brought to its size, the rest white, as Pillow does it
// (a triangle as wide as the shrinking asks for, rows after columns, rounded in between).

// { data (RGBA), width, height } -> Float32Array (3 x size x size)
export function pixelsOf(picture, { size, mean, std }) {
  const scale = size / Math.max(picture.width, picture.height);
  const wide = Math.max(1, Math.round(picture.width * scale)), high = Math.max(1, Math.round(picture.height * scale));
  const small = resize(onWhite(picture), picture.width, picture.height, wide, high);
  const left = (size - wide) >> 1, top = (size - high) >> 1, out = new Float32Array(3 * size * size);
  for (let c = 0; c < 3; c++)
    for (let y = 0; y < size; y++)
      for (let x = 0; x < size; x++) {
        const inside = x >= left && x < left + wide && y >= top && y < top + high;
        const value = inside ? small[((y - top) * wide + x - left) * 3 + c] : 255;
        out[(c * size + y) * size + x] = (value - mean[c] * 255) / (std[c] * 255);
      }
  return out;
}

function onWhite({ data, width, height }) {
  const out = new Uint8Array(width * height * 3);
  for (let i = 0; i < width * height; i++)
    for (let c = 0; c < 3; c++) out[3 * i + c] = Math.round((data[4 * i + c] * data[4 * i + 3] + 255 * (255 - data[4 * i + 3])) / 255);
  return out;
}

function resize(data, width, height, wide, high) {
  const turned = width === wide ? data : along(data, width, height, wide, 3, width * 3, 3, wide * 3);
  return height === high ? turned : along(turned, height, wide, high, wide * 3, 3, wide * 3, 3);
}

// One axis from `from` to `to` numbers; `lines` lines, three colours each; steps within a line and between lines, before and after
function along(data, from, lines, to, step, line, after, next) {
  const out = new Uint8Array(to * lines * 3), scale = from / to, reach = Math.max(scale, 1);
  for (let i = 0; i < to; i++) {
    const centre = (i + 0.5) * scale, low = Math.max(0, Math.floor(centre - reach + 0.5)), top = Math.min(from, Math.floor(centre + reach + 0.5));
    const weights = [];
    let sum = 0;
    for (let j = low; j < top; j++) {
      const weight = Math.max(0, 1 - Math.abs((j + 0.5 - centre) / reach));
      weights.push(weight);
      sum += weight;
    }
    for (let l = 0; l < lines; l++)
      for (let c = 0; c < 3; c++) {
        let value = 0;
        for (let j = low; j < top; j++) value += weights[j - low] * data[l * line + j * step + c];
        out[l * next + i * after + c] = Math.min(255, Math.max(0, Math.round(value / sum)));
      }
  }
  return out;
}
