"""What an index says about its hits: which plan found them, and how a beam search generates their IDs, code by code, with words
and items for each code; and, in one line, whether it holds things that its model does not know, or more than its codes were
fitted to.

`explain` gives plain data, the same in Python, on the command line and over HTTP. The numbers are the decoder's
(`genius.search.beam`); a code's words are those that its items have and the items of other codes lack. `below` is what lives
under a prefix of codes. `advice` looks at a sample of what is stored, embeddings and codes; nothing is encoded.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from genius.errors import GeniusError
from genius.index import searching
from genius.index.folder import INSIDE
from genius.index.opened import Live
from genius.index.reader import HIT_COLUMNS
from genius.index.results import Hit, Hits, PrefixView
from genius.index.target import spread
from genius.model.known_items import distances
from genius.search import SearchEngine, SearchParams, SearchRequest
from genius.search.params import whole
from genius.search.scan import compared_whole
from genius.types import Item, Modality, Query, name_of

if TYPE_CHECKING:
    from torch import Tensor

    from genius.index import Index
    from genius.search.beam import Trace

Prefix = tuple[int, ...]
JsonObject = dict[str, Any]
SAMPLED_ITEMS = 24  # items below a code whose words are counted
WORDS = 3  # shown of a code
EXAMPLES = 3
MOST = 50  # beams and rejected codes of a level that may be listed
PLANS = {"flat": "vectors compared", "scan": "items scanned", "beam": "items below its beams"}
TEXT = Modality.TEXT.label
EMPTY_WORDS = frozenset(
    ("the", "and", "for", "with", "from", "that", "this", "are", "was", "its", "his", "her", "not", "you", "all")
)


NOT_FITTED = "nothing fitted yet: there is no ID to generate, and none is needed"
"""Of an index that is compared whole (`genius.fit.unfitted_model`)."""


def explain(
    state: Index,
    query: Query,
    hits: Hits,
    *,
    request: SearchRequest,
    shown: int,
    rejected: int,
) -> dict[str, Any]:
    """How the hits of a query came about, as the index is now; see `Index.explain`.

    Args:
        state: The index.
        query: What was searched.
        hits: What the search found.
        request: How it was searched.
        shown: Beams of every level that are listed, besides those that lead to hits.
        rejected: Codes of every level that were not kept and are listed.
    """
    if request.mode == "words":
        raise GeniusError("mode 'words' generates no codes: explain a search of mode 'similarity' or 'hybrid'")
    whole("shown", shown, 1, MOST)
    whole("rejected", rejected, 0, MOST)
    parts = [query]
    if not request.strict:
        parts = spread([query], state.modalities())[0]
    model = state.model
    embedded = searching.embed_queries(model, parts)
    traces: list[JsonObject] = []
    answers: dict[str, JsonObject] = {}
    with state.lock:
        live = state.current(model=model)
        engine = live.engine()
        params = request.settings(model, state.about.vectors)
        for number, part in enumerate(parts):
            if engine is None or live.alive == 0:
                break
            part_hits = [hit for hit in hits if part.target is None or hit.modality == part.target]
            biases = _item_biases(live, engine, int(embedded.modality[number]), part_hits, params)
            for hit, bias in zip(part_hits, biases, strict=True):
                answers[hit.id] = {**hit.to_dict(), "log_p": [], "lost_at": None, "item_bias": bias}
            if model.fitted:  # else there is no ID to trace
                trace = _traced(live, engine, part, embedded.z[number : number + 1], part_hits, request.where, params, rejected)
                traces.append({"target": _label(part), "steps": _steps(trace, [hit.codes for hit in part_hits], shown)})
                for hit, path in zip(part_hits, trace.paths.tolist(), strict=True):
                    answers[hit.id] |= _fate(hit, path, trace)
        pictures = _describe(live, traces)
    for body in traces:
        body["tree"] = _tree(body["steps"])
    return {
        "summary": _summary(hits, _label(query), model.fitted),
        "plan": hits.plan,
        "considered": hits.considered,
        "fusion": None if hits.fusion is None else dict(hits.fusion),
        "answers": [answers[hit.id] for hit in hits if hit.id in answers],
        "traces": traces,
        "answerable": hits.answerable,
        "doubtful": hits.doubtful,
        "pictures": pictures,
        "why": hits.why,
        "fitted": model.fitted,
    }


def _label(query: Query) -> str | None:
    if query.target is None:
        return None
    return query.target.label


def _summary(hits: Hits, target: str | None, fitted: bool) -> str:
    """In one line, the plan that really ran."""
    plan = "none (nothing to search)"
    if hits.plan in PLANS:
        plan = f"{hits.plan} ({hits.considered:,} {PLANS[hits.plan]})"
    line = f"plan: {plan} · target: {target or 'any modality'}"
    if hits.fusion is not None:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in hits.fusion.items())
        line = f"{line} · fused by reciprocal ranks: {weights}"
    if not fitted:
        line = f"{line} · {NOT_FITTED}"
    return line


def _traced(
    live: Live,
    engine: SearchEngine,
    query: Query,
    z: Tensor,
    hits: Sequence[Hit],
    where: str | None,
    params: SearchParams,
    rejected: int,
) -> Trace:
    import torch

    target_codes = np.array([searching.target_code(query.target)])
    allowed = searching.allowed_rows(live, where, target_codes)
    if allowed is not None and allowed.ndim == 2:
        allowed = allowed[0]
    ids = torch.tensor([hit.codes for hit in hits], dtype=torch.long).view(-1, live.base.trie.levels)
    target = -1
    if live.model.config.quantizer.labelled:
        target = int(target_codes[0])
    return engine.trace(z, ids, params=params, target=target, allowed=allowed, rejected=rejected)


def _steps(trace: Trace, ids: Sequence[Prefix], shown: int) -> list[JsonObject]:
    """The codes of a trace that people are shown: with each, all codes before it."""
    below = [{codes[: step.level + 1] for codes in ids} for step in trace.steps]
    prefixes: set[Prefix] = set()
    for step, leading in zip(trace.steps, below, strict=True):
        best = [*step.kept[:shown], *step.rejected]
        prefixes.update(code.prefix[:length] for code in best for length in range(1, len(code.prefix) + 1))
        prefixes.update(code.prefix for code in step.kept if code.prefix in leading)
    steps = []
    for step, leading in zip(trace.steps, below, strict=True):
        codes = []
        for place, code in enumerate((*step.kept, *step.rejected), start=1):
            if code.prefix not in prefixes:
                continue
            kept = place <= len(step.kept)
            codes.append(
                {
                    "prefix": code.prefix,
                    "log_p": None if step.given else code.log_p,
                    "total": code.total,
                    "items": code.items,
                    "kept": kept,
                    "rank": place if kept else None,
                    "answer": code.prefix in leading,
                }
            )
        steps.append(
            {"level": step.level, "competing": step.competing, "beams": len(step.kept), "items": step.items, "codes": codes}
        )
    return steps


def _tree(steps: Sequence[JsonObject]) -> list[JsonObject]:
    """The codes of all steps as a tree: each holds those that follow it as `children`."""
    nodes: dict[Prefix, JsonObject] = {}
    roots: list[JsonObject] = []
    for code in (code for step in steps for code in step["codes"]):
        prefix = code["prefix"]
        nodes[prefix] = {**code, "children": []}
        siblings = roots
        if prefix[:-1] in nodes:
            siblings = nodes[prefix[:-1]]["children"]
        siblings.append(nodes[prefix])
    return roots


def _item_biases(
    live: Live, engine: SearchEngine, query_modality: int, hits: Sequence[Hit], params: SearchParams
) -> list[float | None]:
    """What was taken off the similarity of each hit; None where nothing was."""
    bias = engine.bias_for(params)
    if bias is None:
        return [None] * len(hits)
    rows = live.find([hit.id for hit in hits])
    places = np.array([[rows.get(hit.id, 0) for hit in hits]], np.int64).reshape(1, -1)
    taken = bias.take(np.array([query_modality]), places)[0].tolist()
    return [round(value, 4) for value in taken]


def _fate(hit: Hit, path: Sequence[float], trace: Trace) -> JsonObject:
    """How likely each code of a hit was, and where the beams lost it."""
    lost_at = None
    for step in trace.steps:
        if all(one.prefix != hit.codes[: step.level + 1] for one in step.kept):
            lost_at = step.level
            break
    given = bool(trace.steps) and trace.steps[0].given
    return {"log_p": [None if given and level == 0 else value for level, value in enumerate(path)], "lost_at": lost_at}


# -- what a code means -------------------------------------------------------------------------------------------


def _describe(live: Live, traces: Sequence[JsonObject]) -> list[str]:
    """Give every code words and ids of examples; which of the examples have images."""
    codes = [code for trace in traces for step in trace["steps"] for code in step["codes"]]
    rows = {}
    for prefix in {code["prefix"] for code in codes}:
        below = live.below(prefix)
        rows[prefix] = below[:: max(1, math.ceil(len(below) / SAMPLED_ITEMS))]
    seqs = np.unique(np.concatenate([np.empty(0, np.int64), *(live.seqs[sampled] for sampled in rows.values())]))
    items = {}
    for seq, row in live.reader.rows(seqs, HIT_COLUMNS).items():
        items[seq] = searching.item_of_row({**row, "_image_bytes": b"" if row["modality"] != TEXT else None})
    sampled_items = {prefix: [items[int(seq)] for seq in live.seqs[sampled]] for prefix, sampled in rows.items()}
    words = _words(sampled_items)
    pictures = set()
    for code in codes:
        examples = sampled_items[code["prefix"]][:EXAMPLES]
        code["words"] = words[code["prefix"]]
        code["examples"] = tuple(item.id for item in examples)
        pictures |= {item.id for item in examples if item.image is not None}
    return sorted(pictures)


def _words(items: dict[Prefix, list[Item]]) -> dict[Prefix, tuple[str, ...]]:
    """The words that most items below a code have and few below other codes of its level: tf-idf, codes as documents."""
    counts = {prefix: Counter(word for item in word_counts for word in words_of(item)) for prefix, word_counts in items.items()}
    codes_with: dict[int, Counter[str]] = {}  # level -> word -> codes that have it
    levels = Counter(len(prefix) for prefix in items)
    for prefix, word_counts in counts.items():
        codes_with.setdefault(len(prefix), Counter()).update(word_counts.keys())
    out = {}
    for prefix, word_counts in counts.items():
        level = len(prefix)
        weight = {word: count * math.log1p(levels[level] / codes_with[level][word]) for word, count in word_counts.items()}
        out[prefix] = tuple(sorted(weight, key=lambda word: (-weight[word], word))[:WORDS])
    return out


def words_of(item: Item) -> set[str]:
    """The words of an item's text, tags or file name, without those that say nothing."""
    text = item.text or name_of(item) or ""
    return {word for word in re.findall(r"[^\W\d_]{3,}", text.lower()[:2000]) if word not in EMPTY_WORDS}


def below(state: Index, prefix: Sequence[int | None], limit: int, offset: int, per_child: int) -> PrefixView:
    """What lives under the first codes of an ID, None for any code, of one version."""
    codes = tuple(prefix)
    levels = state.about.levels
    for name, value in (("limit", limit), ("offset", offset), ("per_child", per_child)):
        whole(name, value, -(2**31), 2**31)
    if not all(code is None or (isinstance(code, int | np.integer) and not isinstance(code, bool)) for code in codes):
        raise GeniusError(f"a prefix is whole numbers, got {codes!r}")
    if len(codes) > len(levels):
        raise GeniusError(f"a prefix of {len(codes)} codes; IDs have {len(levels)}")
    for level, code in enumerate(codes):
        if code is not None and not 0 <= code < levels[level]:
            raise GeniusError(f"code {code} at level {level} is not in 0..{levels[level] - 1}")
    return state.consistent(lambda: _below(state, codes, max(limit, 0), max(offset, 0), max(per_child, 0)))


def _below(state: Index, wanted: tuple[int | None, ...], limit: int, offset: int, per_child: int) -> PrefixView:
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
        shown_codes = live.codes_of(shown)
        seqs = live.seqs[shown]
        reader = live.reader
    rows_by_seq = reader.rows(seqs, HIT_COLUMNS)
    items = searching.display(reader, [rows_by_seq[int(seq)] for seq in seqs])
    return PrefixView(wanted, len(rows), children, items, [tuple(row) for row in shown_codes.tolist()])


SAMPLE = 400  # items that are sampled
OUTGROWN = 4  # times as many items as codes were fitted to
NAMES = {"image": "pictures", "text": "texts", "pair": "pictures with texts"}
HELP = "a model fitted to them finds more: genius index FILES -o NEW.genius --encoder hf-hub:openai/clip-vit-base-patch32"


def unlike(state: Index) -> dict[str, float]:
    """Share of items that the model's codes describe badly, by modality; only modalities for which it is too large."""
    model = state.model
    if model.knows is None or model.config.rerank_embedding != "fused":
        return {}
    with state.lock:
        live = state.current()
        alive = np.flatnonzero(~live.dead)
        engine = live.engine()
        reader = live.reader
    vectors = None
    if engine is not None:
        vectors = engine.collection.stored
    if vectors is None or not len(alive):
        return {}
    picked = alive[np.linspace(0, len(alive) - 1, min(SAMPLE, len(alive))).astype(np.int64)]
    z = vectors.arrays.host(vectors.take(picked))
    codes = live.codes_of(picked)
    modalities = codes[:, 0]
    if not model.config.quantizer.labelled:  # the first code is not the modality
        rows_by_seq = reader.rows(live.seqs[picked], ["modality"])
        modalities = np.array([int(Modality.parse(rows_by_seq[int(seq)]["modality"])) for seq in live.seqs[picked]])
    return model.knows.strange(distances(model.reconstruct, z, codes), modalities)


def advice(state: Index) -> str | None:
    """One line that says what is wrong and what helps; None: nothing is."""
    known_items = state.model.knows
    if known_items is None:
        return None
    with state.lock:
        count = state.current().alive
    if state.about.source == INSIDE:
        if compared_whole(count) and state.about.vectors:
            return None  # the default search needs no codes
        if not known_items.fitted:
            return (
                f"this index has grown to {count:,} items, and nothing is fitted yet: "
                f"genius index --fit -o {state.path.name} fits codes and decoder"
            )
        if count < OUTGROWN * known_items.items and not unlike(state):
            return None
        remedy = f"genius index FILES -o {state.path.name} --refit fits new ones"
        if not state.about.vectors:
            remedy = "it stores no vectors to fit new ones to, so make it anew: genius index FILES -o NEW.genius --codes-only"
        return f"this index has outgrown its codes, which were fitted to {known_items.items:,} of its {count:,} items: {remedy}"
    unlike_modalities = unlike(state)
    if not unlike_modalities:
        return None
    names = " and ".join(NAMES[modality] for modality in unlike_modalities)
    return f"the {names} here look unlike what this model knows ({known_items.about or 'what it was trained on'}); {HELP}"
