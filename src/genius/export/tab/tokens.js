// Words -> token numbers, as the bundled encoder's tokenizer makes them: WordPiece over lower-case letters without accents.

const SPECIAL = /(\[PAD\]|\[UNK\]|\[CLS\]|\[SEP\])/;
const MARK = /[!-/:-@[-`{-~\p{P}]/u; // every mark of ASCII, and punctuation of any script

export class Tokens {
  // about: { vocabulary: [word, ...], length, start, end, unknown, prefix, longest }
  constructor(about) {
    Object.assign(this, about);
    this.ids = new Map(about.vocabulary.map((word, id) => [word, id]));
  }

  words(text) {
    const out = [];
    let word = "";
    const close = () => { if (word) out.push(word); word = ""; };
    for (const letter of text.normalize("NFKD").replace(/\p{Mn}/gu, "").toLowerCase()) {
      if (/\s/u.test(letter)) close();
      else if (MARK.test(letter)) { close(); out.push(letter); }
      else word += letter;
    }
    close();
    return out;
  }

  pieces(word) {
    const letters = [...word], out = [];
    if (letters.length > this.longest) return [this.unknown];
    for (let at = 0; at < letters.length; ) {
      let end = letters.length, id;
      for (; end > at; end--) {
        id = this.ids.get((at ? this.prefix : "") + letters.slice(at, end).join(""));
        if (id !== undefined) break;
      }
      if (end === at) return [this.unknown];
      out.push(id);
      at = end;
    }
    return out;
  }

  encode(text) {
    const ids = [];
    for (const part of text.split(SPECIAL)) {
      if (SPECIAL.test(part)) ids.push(this.ids.get(part));
      else for (const word of this.words(part)) ids.push(...this.pieces(word));
    }
    return [this.start, ...ids.slice(0, this.length - 2), this.end];
  }
}
