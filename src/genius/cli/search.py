"""`genius search`: query an index. `genius explain`: how results are found. `genius duplicates`: nearly equal items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.common import command, emit, note
from genius.cli.index import DeviceOption, IndexArgument, JsonOption, ModelOption
from genius.errors import GeniusError, counted, without_controls
from genius.types import Query

if TYPE_CHECKING:
    from genius.index import Index

TextOption = Annotated[str | None, typer.Option("--text", "-t", help="Query text. Combine it with --image for a composed query.")]
ImageOption = Annotated[
    Path | None,
    typer.Option("--image", "-i", help="Query image. With --text: a composed query (the image, changed as the text says)."),
]
TargetOption = Annotated[
    str | None,
    typer.Option(help="Modality to return: image (anything with an image), text (anything with text), pair (both) or any."),
]
WordsArgument = Annotated[str | None, typer.Argument(help="Query text.", metavar="TEXT", show_default=False)]
InstructionOption = Annotated[str | None, typer.Option(help="Instruction for the encoder. Default: one for the target modality.")]
WhereOption = Annotated[str | None, typer.Option(help="SQL condition on metadata: \"price < 50 AND colour IN ('red', 'blue')\".")]

NEIGHBOURS = 3  # items shown under a code
LEGEND = (
    "*: leads to a hit; x: not among the beams. log p: log-probability of a code, given the codes before it (given: the query's "
    "target). items: below the prefix. Then words of these items that items of other codes lack."
)
MinusOption = Annotated[str | None, typer.Option(help="Text or image path to steer away from.")]
ModalityOption = Annotated[str | None, typer.Option(help="Return only items of exactly this modality: image, text or pair.")]


def register(app: typer.Typer) -> None:
    for function in (search, duplicates, explain):
        app.command(function.__name__)(function)


@command
def search(
    path: IndexArgument,
    words: WordsArgument = None,
    text: TextOption = None,
    image: ImageOption = None,
    target: TargetOption = None,
    modality: ModalityOption = None,
    instruction: InstructionOption = None,
    k: Annotated[int, typer.Option("-k", help="Number of results.")] = 10,
    where: WhereOption = None,
    min_score: Annotated[float | None, typer.Option(help="Drop results with a lower similarity.")] = None,
    beams: Annotated[int | None, typer.Option(help="Beam width: prefixes kept at every level of a beam search.")] = None,
    rerank: Annotated[
        int | None,
        typer.Option(help="Candidates re-ranked by embedding. 0: rank generated IDs by log-probability, as in the paper."),
    ] = None,
    min_probability: Annotated[
        float | None,
        typer.Option(help="Return nothing if the probability that a match exists is lower (0 to 1). Needs a calibrated model."),
    ] = None,
    no_item_bias: Annotated[bool, typer.Option("--no-item-bias", help="Ignore the score bias of `genius learn`.")] = False,
    minus: MinusOption = None,
    diverse: Annotated[bool, typer.Option("--diverse", help="Return at most one result per code prefix.")] = False,
    mode: Annotated[
        str, typer.Option(help="similarity; words: full-text search (BM25); hybrid: both, by reciprocal rank fusion.")
    ] = "similarity",
    words_weight: Annotated[
        float | None, typer.Option(help="Weight of BM25 in a hybrid search, relative to similarity. Default: 4.")
    ] = None,
    vector: Annotated[
        Path | None, typer.Option(help="A .npy file with the query's vector, for an index of your own vectors.")
    ] = None,
    open_first: Annotated[bool, typer.Option("--open", help="Open the image of the first result.")] = False,
    version: Annotated[int | None, typer.Option(help="Search an older version (genius info --versions).")] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Search an index with text, an image, or both.

    Without --target, images are returned, or texts if no item has an image.

    Examples:
      genius search my.genius "a red bicycle"
      genius search my.genius --image a.jpg --text "crossed out" -k 5
      genius search my.genius --text bicycle --where "price < 500" --json
      genius search my.genius "a bicycle" --minus "a child" --diverse --open
      genius search my.genius "IMG_0412.jpg" --mode words
      genius search my.genius "oak table" --mode hybrid
    """
    from genius.index.target import Target
    from genius.search import SearchRequest

    if words is not None and text is not None:
        raise GeniusError("give the query text once: after the index, or with --text")
    text = text or words
    if vector is None:
        check_query(text, image)
    with open_index(path, model, version, device) as index:
        wanted = Target.parse(target, modality)
        request = SearchRequest(
            k,
            where,
            min_score,
            beams,
            rerank,
            strict=wanted.strict,
            diverse=diverse,
            mode=mode,
            item_bias=False if no_item_bias else None,
            min_probability=min_probability,
            any_modality=wanted.any_modality,
        )
        if words_weight is not None:
            request = replace(request, words_weight=words_weight)
        query = Query(text, image, instruction, wanted.modality, _minus(minus), _query_vector(vector))
        hits = index.search_many([query], request)[0]
        hint = None if as_json else index.advice()
    if as_json:
        body: dict[str, Any] = {"hits": [hit.to_dict() for hit in hits], "answerable": hits.answerable, "doubtful": hits.doubtful}
        if hits.why is not None:
            body["why"] = hits.why
        emit(body)
        return
    if hits and hits[0].probability is not None:
        note("rank, similarity, probability of being relevant, item")
    for rank, hit in enumerate(hits, start=1):
        likely = ""
        if hit.probability is not None:
            likely = f"  {100 * hit.probability:3.0f} %"
        print(f"{rank:3}  {hit.score:.4f}{likely}  {without_controls(hit.id + about(hit.item.text, hit.item.metadata))}")
    if open_first and hits and isinstance(hits[0].item.image, str | Path):
        typer.launch(str(hits[0].item.image))
    if hits and hits.doubtful:
        print(f"probably no match: the index holds a relevant item with probability {100 * (hits.answerable or 0):.0f} %")
    if hits.why is not None:
        print(hits.why)
    if hint is not None:
        note(f"note: {hint}")


def open_index(path: Path, model: str | None, version: int | None, device: str = "") -> Index:
    """An index for one command.

    Args:
        path: Of the index.
        model: URI of its model; None: the one that it was built with.
        version: An older one; None: the newest.
        device: Where the model runs. On a CPU stored graphs are taken, which start faster than torch. Empty: torch, on the CPU.
    """
    from genius.cli.common import here
    from genius.index import Index
    from genius.index.folder import about_of, load_index_model

    folder = here(path)
    loaded = load_index_model(folder, model, about_of(folder), graphs=device in ("auto", "cpu"))
    if device:
        loaded = loaded.to(device)
    return Index.open(folder, loaded, version=version)


def _query_vector(path: Path | None) -> Any:
    if path is None:
        return None
    from genius.fit.vectors import read_vector

    return read_vector(path)


def _minus(minus: str | None) -> Query | None:
    if minus is None:
        return None
    return Query.of(minus)


def check_query(text: str | None, image: Path | None) -> None:
    if not (text and text.strip()) and image is None:
        raise GeniusError("the query is empty: give text, --image, or both")


def about(text: str | None, metadata: Mapping[str, Any]) -> str:
    """An item's text and metadata, shortened for one line."""
    text = " ".join((text or "").split())
    if len(text) > 70:
        text = text[:69] + "…"
    fields = ", ".join(f"{key}={value}" for key, value in metadata.items())
    return "".join(f"  {part}" for part in (text, fields) if part)


@command
def duplicates(
    path: IndexArgument,
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.0,
            max=1.0,
            help="Cosine similarity from which two items are duplicates. Default: 0.97 of texts, 0.95 of images.",
        ),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Find near-duplicates: the same photo twice, resized, or compressed again.

    Images must also look the same: objects of one shape in different colours are not duplicates.

    Examples:
      genius duplicates my.genius
      genius duplicates my.genius --threshold 0.99 --json
    """
    from genius.index import Index
    from genius.index.duplicates import duplicates as find

    with Index.open(path, model, read_only=True) as index:
        index.model.to(device)
        groups = list(find(index, threshold))
    if as_json:
        emit({"groups": [{"ids": list(group.ids), "least": group.least} for group in groups]})
        return
    for group in groups:
        print(without_controls(f"{group.least:.4f}  {'  '.join(group.ids)}"))
    if not groups:
        print("no duplicates")
        return
    superfluous = sum(len(group.ids) - 1 for group in groups)
    print(f"{counted(len(groups), 'group')}, {counted(superfluous, 'item')} more than needed")


@command
def explain(
    path: IndexArgument,
    words: WordsArgument = None,
    text: TextOption = None,
    image: ImageOption = None,
    target: TargetOption = None,
    modality: ModalityOption = None,
    instruction: InstructionOption = None,
    k: Annotated[int, typer.Option("-k", help="Number of results to explain.")] = 3,
    where: WhereOption = None,
    minus: MinusOption = None,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Show the codes of this item instead of a query. Repeatable.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Show the items under this code prefix, such as 0,12,7. * matches any code: *,12.")
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Explain a search: the plan that ran, and the codes that the decoder generates.

    For every level it lists the codes that a beam search keeps and rejects, their log-probabilities and the items under
    them. --id shows the codes of an item. --prefix shows the items under a code prefix.

    Examples:
      genius explain my.genius "a red bicycle"
      genius explain my.genius --id photos/a.jpg
      genius explain my.genius --prefix 0,12
    """
    from genius.index.searching import check_fitted

    text = text or words
    if sum((bool(text or image), bool(ids), prefix is not None)) != 1:
        raise GeniusError("explain a query (text or --image), items (--id), or a code prefix (--prefix)")
    with open_index(path, model, None) as index:
        index.model.to(device)
        if prefix is not None or ids:
            check_fitted(index.model, index.path)
        if prefix is not None:
            _explain_prefix(index, _parse_prefix(prefix), as_json)
            return
        if ids:
            _explain_items(index, ids, as_json)
            return
        from genius.index.target import Target
        from genius.search import SearchRequest
        from genius.types import Query

        wanted = Target.parse(target, modality)
        query = Query(text, image, instruction, wanted.modality, _minus(minus))
        request = SearchRequest(k, where, strict=wanted.strict, any_modality=wanted.any_modality)
        found = index.explain(query, request, shown=3, rejected=2)
    if as_json:
        emit(found)
        return
    for lines in _lines(found):
        for line in lines.split("\n"):
            print(without_controls(line))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """An explanation for people."""
    yield found["summary"]
    if not found["answers"]:
        yield found["why"] or "nothing found"
    if found["traces"]:
        yield LEGEND
    for one in found["traces"]:
        yield from _trace_lines(one, found["plan"])
    for rank, answer in enumerate(found["answers"], start=1):
        yield f"{rank:3}  {answer['score']:.4f}  {answer['id']}{about(answer['text'], answer['metadata'])}"
        if not found["fitted"]:
            continue
        likely = " ".join("given" if p is None else f"{p:.2f}" for p in answer["log_p"])
        if answer["lost_at"] is None:
            fate = "in the beam to the end"
        else:
            fate = f"not in the beam from code {answer['lost_at'] + 1} on"
        yield f"     ID {' '.join(map(str, answer['codes']))}   log-probabilities {likely}   {fate}"
        if answer["item_bias"] is not None:
            yield f"     item bias {answer['item_bias']:+.4f}, taken off its similarity (learned from queries)"


def _trace_lines(one: dict[str, Any], plan: str | None) -> Iterator[str]:
    target = ""
    if one["target"] is not None:
        target = f" of the modality {one['target']}"
    if plan == "beam":
        yield f"beam search for IDs{target}:"
    else:
        yield f"codes decided nothing here; a beam search for IDs{target} would go:"
    for node in one["tree"]:
        yield from _branch(node, 1)
    yield ""


def _branch(node: dict[str, Any], depth: int) -> Iterator[str]:
    """A code and the codes after it; a code with one item names it."""
    alone = node["items"] == 1
    code = node["prefix"][-1]
    likely = "given" if node["log_p"] is None else f"{node['log_p']:7.2f}"
    if node["answer"]:
        mark = "*"
    elif node["kept"]:
        mark = " "
    else:
        mark = "x"
    what = ", ".join(node["words"])
    if alone and node["examples"]:
        what = node["examples"][0]
    items = counted(node["items"], "item", 9)
    yield f"{mark} {'  ' * depth}{code:<{max(1, 24 - 2 * depth)}} {likely:>7} {items}  {what}".rstrip()
    if not alone:
        for child in node["children"]:
            yield from _branch(child, depth + 1)


def _explain_items(index: Index, ids: Sequence[str], as_json: bool) -> None:
    paths = [_path_of(index, item_id, index.codes(item_id)) for item_id in ids]
    if as_json:
        emit({"results": paths})
        return
    for result in paths:
        print(f"{without_controls(result['id'])}  ID {' '.join(map(str, result['codes']))}")
        for step in result["path"]:
            others = ", ".join(step["others"]) or "nothing else"
            print(f"  {' '.join(map(str, step['prefix'])):<40} {counted(step['count'], 'item', 9)}   {others}")


def _path_of(index: Index, item_id: str, codes: Sequence[int]) -> dict[str, Any]:
    """For each prefix of an ID: the number of items under it, and some of the others."""
    steps = []
    for level in range(1, len(codes) + 1):
        view = index.below(codes[:level], limit=NEIGHBOURS + 1)
        others = [item.id for item in view.items if item.id != item_id][:NEIGHBOURS]
        steps.append({"prefix": list(codes[:level]), "count": view.count, "others": others})
    return {"id": item_id, "codes": list(codes), "path": steps}


def _parse_prefix(prefix: str) -> list[int | None]:
    try:
        codes = [None if part == "*" else int(part) for part in prefix.replace(",", " ").split()]
    except ValueError:
        raise GeniusError(f"a prefix is codes with commas between, such as 0,12,7 or *,12; not {prefix!r}") from None
    while codes and codes[-1] is None:  # "*,12,*": what comes after the last code is any code anyway
        codes.pop()
    return codes


def _explain_prefix(index: Index, prefix: list[int | None], as_json: bool) -> None:
    view = index.below(prefix, limit=NEIGHBOURS)
    if as_json:
        emit(view.to_dict())
        return
    shown_prefix = " ".join("*" if code is None else str(code) for code in prefix)
    print(f"{counted(view.count, 'item')} under {shown_prefix or 'everything'}")
    for code, count in list(view.children.items())[:20]:
        print(f"  next code {code:>6}  {counted(count, 'item', 9)}".rstrip())
    for item in view.items:
        print(f"  {without_controls(item.id + about(item.text, item.metadata))}")
