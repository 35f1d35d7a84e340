"""`genius search` and `genius explain`: ask an index, and see the codes that lead to the answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.common import command, emit, note
from genius.cli.index import DeviceOption, IndexArgument, JsonOption, ModelOption
from genius.errors import GeniusError
from genius.types import Item

if TYPE_CHECKING:
    from genius.index import Hit, Index

TextOption = Annotated[str | None, typer.Option("--text", "-t", help="What to look for, in words.")]
ImageOption = Annotated[
    Path | None, typer.Option("--image", "-i", help="A picture to look for; with --text: changed as it says.")
]
TargetOption = Annotated[
    str | None,
    typer.Option(help="What is wanted: image (anything with a picture), text (anything with words), pair (both), any."),
]
WordsArgument = Annotated[str | None, typer.Argument(help="What to look for, in words.", metavar="[WORDS]", show_default=False)]
InstructionOption = Annotated[str | None, typer.Option(help="What is wanted, in your own words; --target picks a default.")]
WhereOption = Annotated[str | None, typer.Option(help="A condition on metadata: \"price < 50 AND colour IN ('red', 'blue')\".")]


def register(app: typer.Typer) -> None:
    app.command("search")(search)
    app.command("explain")(explain)


@command
def search(
    path: IndexArgument,
    words: WordsArgument = None,
    text: TextOption = None,
    image: ImageOption = None,
    target: TargetOption = None,
    modality: Annotated[str | None, typer.Option(help="Exactly this kind of item: image, text or pair.")] = None,
    instruction: InstructionOption = None,
    k: Annotated[int, typer.Option("-k", help="How many answers.")] = 10,
    where: WhereOption = None,
    min_score: Annotated[float | None, typer.Option(help="Leave out answers below this score.")] = None,
    beams: Annotated[int | None, typer.Option(help="Prefixes kept at every level of the search.")] = None,
    rerank: Annotated[
        int | None, typer.Option(help="Items re-ranked by embedding; 0: decode IDs to the end, as in the paper.")
    ] = None,
    version: Annotated[int | None, typer.Option(help="Search an older version (genius info --versions).")] = None,
    model: ModelOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Search an index with a text, an image, or both. Without a target, answers have pictures if any item has.

    Examples:

      genius search my.genius "a red bicycle"

      genius search my.genius --image a.jpg --text "the same in blue" -k 5

      genius search my.genius --text bicycle --where "price < 500" --json
    """
    from genius.index.targets import why_nothing
    from genius.model.device import pick_device, place

    if words is not None and text is not None:
        raise GeniusError("ask once: with words behind the index, or with --text")
    text = words if text is None else text
    _check_asked(text, image)
    with _open(path, model, version) as index:
        place(index.model, pick_device(device))
        knobs = {"beams": beams, "rerank": rerank}
        options: Any = {"instruction": instruction, "k": k, "where": where, "min_score": min_score, **knobs}
        wanted = _wanted(index, target, modality)
        hits = index.search(text, image, target=wanted, modality=modality, **options)
        if not hits and target is None and modality is None and wanted is not None:  # nobody asked for pictures
            wanted = None
            hits = index.search(text, image, **options)
        counts = index.info()["modalities"] if not hits else {}
        hint = None if as_json else index.advice()
    reason = None if hits else why_nothing(modality or wanted, modality is not None, counts, where, min_score)
    if as_json:
        body = {"hits": [hit.to_dict() for hit in hits], "answerable": hits.answerable, "doubtful": hits.doubtful}
        emit(body if reason is None else {**body, "why": reason})
        return
    for rank, hit in enumerate(hits, start=1):
        likely = "" if hit.probability is None else f"  {100 * hit.probability:3.0f} %"
        print(f"{rank:3}  {hit.score:.4f}{likely}  {hit.id}{_about(hit.item)}")
    if hits and hits.doubtful:
        print(f"probably nothing like that here: an answer is in this index with {100 * (hits.answerable or 0):.0f} %")
    if reason is not None:
        print(reason)
    if hint is not None:
        note(f"note: {hint}")


@command
def explain(
    path: IndexArgument,
    text: TextOption = None,
    image: ImageOption = None,
    target: TargetOption = None,
    instruction: InstructionOption = None,
    k: Annotated[int, typer.Option("-k", help="How many answers to explain.")] = 3,
    where: WhereOption = None,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Explain this item instead (repeatable).")] = None,
    prefix: Annotated[str | None, typer.Option(help="Show what lives under these codes instead, such as 0,12,7.")] = None,
    neighbours: Annotated[int, typer.Option(min=0, help="Items shown under each code.")] = 3,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the ID of answers or items as a path of codes, and what else lives under each step of it.

    Examples:

      genius explain my.genius --text "a red bicycle" --target image

      genius explain my.genius --id photos/a.jpg

      genius explain my.genius --prefix 0,12
    """
    if sum((bool(text or image), bool(ids), prefix is not None)) != 1:
        raise GeniusError("explain a query (--text, --image), items (--id), or codes (--prefix)")
    with _open(path, model, None) as index:
        if prefix is not None:
            _explain_prefix(index, _parse_prefix(prefix), neighbours, as_json)
            return
        if ids:
            paths = [_path_of(index, item_id, index.codes(item_id), None, neighbours) for item_id in ids]
        else:
            wanted = _wanted(index, target, None)
            hits: Sequence[Hit] = index.search(text, image, instruction=instruction, target=wanted, k=k, where=where)
            paths = [_path_of(index, hit.id, hit.codes, hit.score, neighbours) for hit in hits]
    if as_json:
        emit({"results": paths})
        return
    for result in paths:
        score = "" if result["score"] is None else f"  {result['score']:.4f}"
        print(f"{result['id']}{score}  ID {' '.join(map(str, result['codes']))}")
        for step in result["path"]:
            others = ", ".join(step["others"]) or "nothing else"
            print(f"  {' '.join(map(str, step['prefix'])):<40} {step['count']:>9,} items   {others}")


def _open(path: Path, model: str | None, version: int | None) -> Index:
    from genius.cli.objects import here
    from genius.index import Index

    return Index.open(here(path), model, version=version)


def _wanted(index: Index, target: str | None, modality: str | None) -> str | None:
    """What is looked for where nobody said: something to look at, if the index has such things."""
    if target is not None or modality is not None:
        return None if target == "any" else target
    kinds = index.info()["modalities"]
    return "image" if kinds["image"] or kinds["pair"] else None


def _check_asked(text: str | None, image: Path | None) -> None:
    if not (text and text.strip()) and image is None:
        raise GeniusError("ask with words, --image, or both")


def _about(item: Item) -> str:
    """A short line about an item for people."""
    text = " ".join(item.text.split()) if item.text else ""
    parts = [text if len(text) <= 70 else text[:69] + "…", ", ".join(f"{key}={value}" for key, value in item.metadata.items())]
    return "".join(f"  {part}" for part in parts if part)


def _path_of(index: Index, item_id: str, codes: Sequence[int], score: float | None, neighbours: int) -> dict[str, Any]:
    """Each prefix of an ID: how many items live there and which others, for as long as there are others."""
    steps = []
    for level in range(1, len(codes) + 1):
        view = index.below(codes[:level], limit=neighbours + 1)
        others = [item.id for item in view.items if item.id != item_id][:neighbours]
        steps.append({"prefix": list(codes[:level]), "count": view.count, "others": others})
    return {"id": item_id, "score": score, "codes": list(codes), "path": steps}


def _parse_prefix(prefix: str) -> list[int]:
    try:
        return [int(part) for part in prefix.replace(",", " ").split()]
    except ValueError:
        raise GeniusError(f"a prefix is codes with commas between, such as 0,12,7; not {prefix!r}") from None


def _explain_prefix(index: Index, prefix: list[int], shown: int, as_json: bool) -> None:
    view = index.below(prefix, limit=shown)
    if as_json:
        emit(view.to_dict())
        return
    print(f"{view.count:,} items under {' '.join(map(str, prefix)) or 'everything'}")
    for code, count in list(view.children.items())[:20]:
        print(f"  next code {code:>6}  {count:>9,} items")
    for item in view.items:
        print(f"  {item.id}{_about(item)}")
