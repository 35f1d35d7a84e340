// The whole collection as one image, in the order of its IDs: what shares a prefix lies together, so a prefix is an area of
// neighbouring tiles, and generating an ID makes all others fade.

export class Mosaic {
  constructor(canvas) {
    this.canvas = canvas;
    this.whole = document.createElement("canvas");
  }

  // about.sheets; order: item at each place; items: with `picture` numbers; sheets: loaded pictures
  draw(about, order, items, sheets) {
    const { cell, columns, rows } = about.sheets, n = order.length;
    const side = Math.max(280, this.canvas.clientWidth || 520) * Math.min(devicePixelRatio || 1, 2);
    this.grid = 2 ** Math.ceil(Math.log2(Math.sqrt(n)));
    this.tile = side / this.grid;
    const high = Math.max(...Array.from(order, (_, place) => this.at(place)[1])) + this.tile; // a curve that is not full leaves a quarter free
    for (const canvas of [this.canvas, this.whole]) {
      canvas.width = side;
      canvas.height = high;
    }
    const pen = this.whole.getContext("2d");
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, side, high);
    order.forEach((item, place) => {
      const number = items[item].picture, [x, y] = this.at(place);
      if (number === undefined) {
        pen.fillStyle = "#cfcae6";
        pen.fillRect(x + this.tile * 0.15, y + this.tile * 0.38, this.tile * 0.7, this.tile * 0.24); // words
        return;
      }
      const sheet = sheets[Math.floor(number / (columns * rows))], local = number % (columns * rows);
      if (sheet) pen.drawImage(sheet, (local % columns) * cell, Math.floor(local / columns) * cell, cell, cell, x, y, this.tile, this.tile);
    });
    this.light(this.lit ?? null);
  }

  // Places run along Hilbert's curve: neighbours in the order stay neighbours on the image.
  at(place) {
    let x = 0, y = 0, rest = place;
    for (let step = 1; step < this.grid; step *= 2) {
      const right = 1 & (rest >> 1), up = 1 & (rest ^ right);
      if (!up) {
        if (right) [x, y] = [step - 1 - x, step - 1 - y];
        [x, y] = [y, x];
      }
      x += step * right;
      y += step * up;
      rest >>= 2;
    }
    return [x * this.tile, y * this.tile];
  }

  // Only these ranges of places stay bright, the first of them is framed; null: all
  light(ranges) {
    this.lit = ranges;
    const pen = this.canvas.getContext("2d");
    pen.globalAlpha = 1;
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.globalAlpha = ranges === null ? 1 : 0.1;
    pen.drawImage(this.whole, 0, 0);
    pen.globalAlpha = 1;
    (ranges ?? []).forEach(({ lo, hi }, i) => {
      for (let place = lo; place < hi; place++) {
        const [x, y] = this.at(place);
        pen.drawImage(this.whole, x, y, this.tile, this.tile, x, y, this.tile, this.tile);
        if (i === 0 && hi - lo <= 40) {
          pen.strokeStyle = "#5646d6";
          pen.lineWidth = Math.max(2, this.tile / 6);
          const grow = this.tile * (hi - lo > 4 ? 0.3 : 1.2);
          pen.strokeRect(x - grow, y - grow, this.tile + 2 * grow, this.tile + 2 * grow);
        }
      }
    });
  }
}
