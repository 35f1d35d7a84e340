// The collection as sorted IDs: everything below a prefix is one range of rows, so this table is the trie.

export class Collection {
  // codes: Uint16Array (items x levels), sorted; order: which item is at each place
  constructor(codes, order, levels) {
    Object.assign(this, { codes, order, levels, items: order.length });
  }

  code(place, level) {
    return this.codes[place * this.levels + level];
  }

  // The true next codes of the IDs in lo..hi, which share `level` codes: [{ code, lo, hi }], codes ascending.
  children(level, lo, hi) {
    const out = [];
    while (lo < hi) {
      const code = this.code(lo, level);
      let end = lo + 1, reach = 1;
      while (end < hi && this.code(Math.min(end + reach, hi) - 1, level) === code) { // twice as far each time, then halve
        end = Math.min(end + reach, hi);
        reach *= 2;
      }
      for (let top = Math.min(end + reach, hi); end < top; ) {
        const middle = (end + top) >> 1;
        if (this.code(middle, level) === code) end = middle + 1;
        else top = middle;
      }
      out.push({ code, lo, hi: end });
      lo = end;
    }
    return out;
  }

  // Whether the IDs in lo..hi are all the same one.
  single(lo, hi) {
    for (let level = 0; level < this.levels; level++) if (this.code(lo, level) !== this.code(hi - 1, level)) return false;
    return true;
  }

  find(prefix) {
    let range = { lo: 0, hi: this.items };
    for (let level = 0; level < prefix.length && range; level++)
      range = this.children(level, range.lo, range.hi).find(({ code }) => code === prefix[level]);
    return range ?? { lo: 0, hi: 0 };
  }
}
