"""What an index says about its answers: how the ID was written, code by code, with words and items for each code; and, in one
line, whether it holds things that its model does not know, or more than its codes were fitted to.

`explain` gives plain data (`Explanation.to_dict()` is JSON) for the command line, the HTTP service and its page. The numbers are
the decoder's (`genius.search.beam`); a code's words are those that its items have and the items beside it lack. `below` is what
lives under a prefix of codes. `advice` looks at a sample of what is stored, embeddings and codes; nothing is encoded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from genius.errors import GeniusError
from genius.index import searching
from genius.index.folder import INSIDE
from genius.index.opened import Live, OpenIndex
from genius.index.reader import PAYLOAD
from genius.index.results import Hit, Hits, PrefixView
from genius.model.config import distances
from genius.search import SearchParams, SearchRequest
from genius.search.beam import Candidate, Trace
from genius.search.params import whole
from genius.types import Item, Modality, Query, name_of

Prefix = tuple[int, ...]
LOOKED_AT = 24  # items below a code whose words are counted
WORDS, EXAMPLES = 3, 3  # shown of a code
MOST = 50  # beams and rejected codes of a step that may be asked for
TEXT = Modality.TEXT.label
EMPTY_WORDS = frozenset(
    ("the", "and", "for", "with", "from", "that", "this", "are", "was", "its", "his", "her", "not", "you", "all")
)


@dataclass(frozen=True, slots=True)
class Code:
    """One code that could be written after others."""

    prefix: Prefix  # the codes up to and with this one
    log_p: float | None  # of this code, given those before; None: it was given
    total: float  # log p of the whole prefix
    items: int  # below it
    kept: bool  # whether it was among the beams
    rank: int | None  # its place among the beams, from 1
    answer: bool  # whether a hit lies below it
    words: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()  # ids of items below it


@dataclass(frozen=True, slots=True)
class Step:
    """The writing of one code."""

    level: int
    competing: int  # codes that could follow the beams
    beams: int  # how many were kept
    items: int  # below what was kept
    codes: tuple[Code, ...]  # the best that were kept, those that lead to answers, and the best rejected; best first


@dataclass(frozen=True, slots=True)
class Written:
    """How IDs were written for one kind of answer."""

    target: str | None  # the kind that was asked for, as the first code; None: the decoder chose
    stop: int | None  # codes after which the search stops and compares what is below its beams; None: it writes to the end
    compared: int  # items it then compares with the question; 0: none, log p decides
    steps: tuple[Step, ...]

    def tree(self) -> list[dict[str, Any]]:
        """The codes of all steps as a tree: each holds those that were written after it as `children`."""
        nodes: dict[Prefix, dict[str, Any]] = {}
        roots: list[dict[str, Any]] = []
        for code in (code for step in self.steps for code in step.codes):
            nodes[code.prefix] = node = {**asdict(code), "children": []}
            above = nodes.get(code.prefix[:-1])
            (roots if above is None else above["children"]).append(node)
        return roots


@dataclass(frozen=True, slots=True)
class Answer:
    """One hit, and how likely each code of its ID was."""

    hit: Hit
    log_p: tuple[float | None, ...]  # of each code, given those before; None: it was given
    lost_at: int | None  # level at which the beams lost it (it is found all the same if the search stops before); None: never


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `Index.explain` gives."""

    answers: list[Answer]
    written: list[Written]  # one for each kind of answer that was looked for
    scanned: bool  # the index is so small that every item was compared: the codes decided nothing
    answerable: float | None = None
    doubtful: bool = False
    pictures: frozenset[str] = field(default=frozenset())  # ids among the examples that have a picture
    why: str | None = None  # where nothing was found: why, and what to do

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        answers = [{**a.hit.to_dict(), "log_p": list(a.log_p), "lost_at": a.lost_at} for a in self.answers]
        written = [{**asdict(w), "tree": w.tree()} for w in self.written]
        body = {"answers": answers, "written": written, "scanned": self.scanned}
        rest = {"answerable": self.answerable, "doubtful": self.doubtful, "pictures": sorted(self.pictures), "why": self.why}
        return body | rest


def explain(
    state: OpenIndex,
    query: Query,
    hits: Hits,
    *,
    request: SearchRequest,
    shown: int,
    rejected: int,
) -> Explanation:
    """How the answers `hits` to a query came about, as the index is now."""
    whole("shown", shown, 1, MOST)
    whole("rejected", rejected, 0, MOST)
    params, where = request.settings(state.model), request.where
    asked = [query] if request.strict else searching.spread([query], state.kinds())[0]
    embedded = state.model.embed_queries(asked)
    labelled = state.model.config.quantizer.labelled
    with state.lock:
        live = state.current()
        engine = live.engine()
        if engine is None or live.alive == 0:
            return Explanation([], [], True, hits.answerable, hits.doubtful, why=hits.why)
        written, likely = [], {}
        for number, one in enumerate(asked):
            own = torch.tensor([-1 if one.target is None else int(one.target)])
            allowed = searching._allowed(state, live, where, own)
            allowed = allowed[0] if allowed is not None and allowed.ndim == 2 else allowed
            mine = [hit for hit in hits if one.target is None or hit.modality == one.target]
            codes = torch.tensor([hit.codes for hit in mine], dtype=torch.long).view(-1, len(state.about.levels))
            target = int(own) if labelled else -1
            z = embedded.z[number : number + 1]
            found = engine.trace(z, codes, params=params, target=target, allowed=allowed, rejected=rejected)
            label = None if one.target is None else Modality(one.target).label
            written.append((label, target >= 0, found, _shown(found, [hit.codes for hit in mine], shown)))
            likely.update({hit.id: (row, target >= 0, found) for hit, row in zip(mine, found.paths.tolist(), strict=True)})
        told, pictures = _describe(live, {code.prefix for _, _, _, codes in written for code in codes})
    scanned = params.reranker == "embeddings" and params.rerank > 0 and all(found.stop == int(g) for _, g, found, _ in written)
    return Explanation(
        [_answer(hit, *likely[hit.id]) for hit in hits if hit.id in likely],
        [_written(label, found, codes, told, params) for label, _, found, codes in written],
        scanned,
        hits.answerable,
        hits.doubtful,
        pictures,
        hits.why,
    )


def _shown(found: Trace, answers: Sequence[Prefix], shown: int) -> list[Code]:
    """The codes of a trace that people are shown: with each, all codes before it."""
    wanted: set[Prefix] = set()
    for step in found.steps:
        best = [*step.kept[:shown], *step.rejected]
        ahead = {codes[: step.level + 1] for codes in answers}
        wanted.update(c.prefix[:n] for c in best for n in range(1, len(c.prefix) + 1))
        wanted.update(c.prefix for c in step.kept if c.prefix in ahead)
    out = []
    for step in found.steps:
        below = {codes[: step.level + 1] for codes in answers}
        for rank, one in enumerate((*step.kept, *step.rejected), start=1):
            if one.prefix in wanted:
                kept = rank <= len(step.kept)
                out.append(_code(one, step.given, kept, rank if kept else None, one.prefix in below))
    return out


def _code(one: Candidate, given: bool, kept: bool, rank: int | None, answer: bool) -> Code:
    return Code(one.prefix, None if given else one.log_p, one.total, one.items, kept, rank, answer)


def _written(
    label: str | None,
    found: Trace,
    codes: Sequence[Code],
    told: dict[Prefix, tuple[tuple[str, ...], tuple[str, ...]]],
    params: SearchParams,
) -> Written:
    steps = []
    for step in found.steps:
        own = [replace(c, words=told[c.prefix][0], examples=told[c.prefix][1]) for c in codes if len(c.prefix) == step.level + 1]
        steps.append(Step(step.level, step.competing, len(step.kept), step.items, tuple(own)))
    compared = 0
    if params.reranker != "none":
        last = len(steps) if found.stop is None else found.stop
        compared = found.steps[last - 1].items if last else sum(one.items for one in found.steps[0].kept) if steps else 0
    return Written(label, found.stop, compared, tuple(steps))


def _answer(hit: Hit, row: Sequence[float], given: bool, found: Trace) -> Answer:
    lost = next((step.level for step in found.steps if all(one.prefix != hit.codes[: step.level + 1] for one in step.kept)), None)
    return Answer(hit, tuple(None if given and level == 0 else value for level, value in enumerate(row)), lost)


# -- what a code means -------------------------------------------------------------------------------------------


def _describe(
    live: Live, prefixes: Iterable[Prefix]
) -> tuple[dict[Prefix, tuple[tuple[str, ...], tuple[str, ...]]], frozenset[str]]:
    """(words, ids) of each code, and which of these ids have pictures."""
    rows = {}
    for prefix in prefixes:
        below = live.below(prefix)
        rows[prefix] = below[:: max(1, math.ceil(len(below) / LOOKED_AT))]
    seqs = np.unique(np.concatenate([live.seqs[own] for own in rows.values()])) if rows else np.empty(0, np.int64)
    found = live.reader.rows(seqs, PAYLOAD)
    items = {
        int(seq): searching.to_item({**row, "_image_bytes": b"" if row["modality"] != TEXT else None})
        for seq, row in found.items()
    }
    own_items = {prefix: [items[int(seq)] for seq in live.seqs[own]] for prefix, own in rows.items()}
    words = _words(own_items)
    told = {prefix: (words[prefix], tuple(item.id for item in own[:EXAMPLES])) for prefix, own in own_items.items()}
    pictured = {item.id for own in own_items.values() for item in own[:EXAMPLES] if item.image is not None}
    return told, frozenset(pictured)


def _words(items: dict[Prefix, list[Item]]) -> dict[Prefix, tuple[str, ...]]:
    """The words that most items below a code have and few below the codes beside it."""
    counts = {prefix: Counter(word for item in own for word in words_of(item)) for prefix, own in items.items()}
    beside: dict[int, Counter[str]] = {}
    levels = Counter(len(prefix) for prefix in items)
    for prefix, own in counts.items():
        beside.setdefault(len(prefix), Counter()).update(own.keys())
    out = {}
    for prefix, own in counts.items():
        codes, there = levels[len(prefix)], beside[len(prefix)]
        worth = {word: count * math.log1p(codes / there[word]) for word, count in own.items()}
        out[prefix] = tuple(sorted(worth, key=lambda word: (-worth[word], word))[:WORDS])
    return out


def words_of(item: Item) -> set[str]:
    """The words of an item's text, tags or file name, without those that say nothing."""
    text = item.text or name_of(item) or ""
    return {word for word in re.findall(r"[^\W\d_]{3,}", text.lower()[:2000]) if word not in EMPTY_WORDS}


def below(state: OpenIndex, prefix: Sequence[int | None], limit: int, offset: int, per_child: int) -> PrefixView:
    """What lives under the first codes of an ID, None for any code, of one version."""
    wanted, levels = tuple(prefix), state.about.levels
    for name, value in (("limit", limit), ("offset", offset), ("per_child", per_child)):
        whole(name, value, -(2**31), 2**31)
    if not all(code is None or (isinstance(code, int | np.integer) and not isinstance(code, bool)) for code in wanted):
        raise GeniusError(f"a prefix is whole numbers, got {wanted!r}")
    if len(wanted) > len(levels):
        raise GeniusError(f"a prefix of {len(wanted)} codes; IDs have {len(levels)}")
    for level, code in enumerate(wanted):
        if code is not None and not 0 <= code < levels[level]:
            raise GeniusError(f"code {code} at level {level} is not in 0..{levels[level] - 1}")
    return state.consistent(lambda: _below(state, wanted, max(limit, 0), max(offset, 0), max(per_child, 0)))


def _below(state: OpenIndex, wanted: tuple[int | None, ...], limit: int, offset: int, per_child: int) -> PrefixView:
    with state.lock:
        live = state.current()
        rows = live.below(wanted)
        children: dict[int, int] = {}
        if len(wanted) < len(state.about.levels) and len(rows):
            following = live.codes_of(rows)[:, len(wanted)]
            codes, counts = np.unique(following, return_counts=True)
            children = {int(codes[i]): int(counts[i]) for i in np.argsort(-counts, kind="stable")}
        shown = rows[offset : offset + limit]
        if per_child and children:
            firsts = [rows[np.flatnonzero(following == code)[:per_child]] for code in list(children)[:64]]
            shown = np.unique(np.concatenate([shown, *firsts]))
        shown_codes, seqs, reader = live.codes_of(shown), live.seqs[shown], live.reader
    found = reader.rows(seqs, PAYLOAD)
    items = searching.display(reader, [found[int(seq)] for seq in seqs])
    return PrefixView(wanted, len(rows), children, items, [tuple(row) for row in shown_codes.tolist()])


SAMPLE = 400  # items that are looked at
OUTGROWN = 4  # times as many items as codes were fitted to
NAMES = {"image": "pictures", "text": "texts", "pair": "pictures with texts"}
HELP = "a model fitted to them finds more: genius index FILES -o NEW.genius --encoder hf-hub:openai/clip-vit-base-patch32"


def unlike(state: OpenIndex) -> dict[str, float]:
    """Kind -> share of the index's items that its model's codes describe badly, for the kinds that look strange to it."""
    model = state.model
    if model.knows is None or model.config.rerank_embedding != "fused":
        return {}
    with state.lock:
        live = state.current()
        alive, engine = np.flatnonzero(~live.dead), live.engine()
        reader = live.reader
    if engine is None or engine.vectors is None or not len(alive):
        return {}
    picked = alive[np.linspace(0, len(alive) - 1, min(SAMPLE, len(alive))).astype(np.int64)]
    z, codes = engine.vectors.take(torch.from_numpy(picked).to(model.device)), torch.from_numpy(live.codes_of(picked))
    found = reader.rows(live.seqs[picked], ["modality"])
    kinds = torch.tensor([int(Modality.parse(found[int(seq)]["modality"])) for seq in live.seqs[picked]])
    return model.knows.strange(distances(model.quantizer, z, codes.to(model.device)).cpu(), kinds)


def advice(state: OpenIndex) -> str | None:
    """One line that says what is wrong and what helps; None: nothing is."""
    known = state.model.knows
    if known is None:
        return None
    with state.lock:
        count = state.current().alive
    if state.about.source == INSIDE:
        if count <= SearchParams.of_model(state.model).rerank:
            return None  # all items are compared anyhow
        if count < OUTGROWN * known.items and not unlike(state):
            return None
        return (
            f"this index has outgrown its codes, which were fitted to {known.items:,} of its {count:,} items: "
            f"genius index FILES -o {state.path.name} --refit fits new ones"
        )
    strange = unlike(state)
    if not strange:
        return None
    what = " and ".join(NAMES[kind] for kind in strange)
    return f"the {what} here look unlike what this model knows ({known.about or 'what it was trained on'}); {HELP}"
