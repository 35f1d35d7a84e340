"""The texts that the small text tower learns language from, and its vocabulary.

Dictionaries (WordNet, GCIDE), a thesaurus (Moby) and the words of the icon benchmark's *training* concepts: as they
are, as short spans cut out of them, and with spelling mistakes. None of them is labelled: the teacher's vector is the
target. Texts of validation and test queries are left out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

from lab.icons.lexicon import read_gcide, read_moby, read_wordnet


def dictionary_texts(sources: Path) -> Iterator[str]:
    """Words, phrases, glosses, examples and definitions."""
    wordnet = sources / "unpacked/wordnet-base/usr/share/wordnet"
    synsets, _ = read_wordnet(wordnet)
    for synset in synsets.values():
        yield from (re.sub(r"\(\w+\)$", "", lemma) for lemma in synset.lemmas)
        yield synset.gloss
        yield f"{synset.lemmas[0]}: {synset.gloss}"
    for name in ("noun", "verb", "adj", "adv"):  # example sentences are not in the lexicon
        for line in (wordnet / f"data.{name}").read_text("latin-1").splitlines():
            if not line.startswith("  "):
                yield from re.findall(r'"([^"]{6,160})"', line.partition(" | ")[2])
    for word, texts in read_gcide(sources / "unpacked/dict-gcide/usr/share/dictd").items():
        yield word
        for text in texts[:3]:
            yield " ".join(text.split()[:32])
    for root, words in read_moby(sources / "unpacked/moby-1.1.2/package/words.txt").items():
        yield root
        yield from (word for word in words if " " in word or len(word) > 3)


def spans(text: str, chance: random.Random) -> Iterator[str]:
    """A short piece of a longer text: how people type."""
    words = text.split()
    if len(words) > 4:
        size = chance.randint(2, min(7, len(words) - 1))
        start = chance.randrange(len(words) - size + 1)
        yield " ".join(words[start : start + size]).strip(" ,;.()")


def misspell(text: str, chance: random.Random) -> str:
    """One slip of the fingers in a word of at least four letters."""
    places = list(re.finditer(r"[a-z]{4,}", text))
    if not places:
        return text
    place = chance.choice(places)
    at = chance.randrange(place.start() + 1, place.end() - 1)
    kind = chance.randrange(3)
    if kind == 0:
        return text[:at] + text[at + 1 :]
    if kind == 1:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return text[:at] + chance.choice("abcdefghijklmnopqrstuvwxyz") + text[at + 1 :]


def clean(texts: Iterator[str], exclude: set[str], limit: int) -> list[str]:
    """Distinct, short enough, readable, in a fixed order; at most `limit`, the dictionary's words before the long tail."""
    found: dict[str, None] = {}
    for text in texts:
        text = re.sub(r"\s+", " ", text).strip().lower()
        if 2 <= len(text) <= 300 and text.isascii() and text not in exclude:
            found.setdefault(text)
    out = list(found)
    random.Random(0).shuffle(out)
    return out[:limit]


def train_vocabulary(texts: list[str], size: int) -> object:
    """A lower-casing WordPiece vocabulary of our own."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, min_frequency=2, continuing_subword_prefix="##")
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    return tokenizer
