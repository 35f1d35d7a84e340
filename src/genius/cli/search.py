"""`genius search`: ask an index. `genius duplicates`: items of an index that are nearly the same."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genius.cli.common import command, emit, note
from genius.cli.index import DeviceOption, IndexArgument, JsonOption, ModelOption
from genius.cli.screen import inline, protocol
from genius.errors import GeniusError
from genius.types import Item, Modality, Query

if TYPE_CHECKING:
    from genius.index import Index


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

MinusOption = Annotated[str | None, typer.Option(help="What answers should not be like: words, or a picture's path.")]
ModalityOption = Annotated[str | None, typer.Option(help="Exactly this kind of item: image, text or pair.")]


def register(app: typer.Typer) -> None:
    app.command("search")(search)
    app.command("duplicates")(duplicates)


@command
def search(
    path: IndexArgument,
    words: WordsArgument = None,
    text: TextOption = None,
    image: ImageOption = None,
    target: TargetOption = None,
    modality: ModalityOption = None,
    instruction: InstructionOption = None,
    k: Annotated[int, typer.Option("-k", help="How many answers.")] = 10,
    where: WhereOption = None,
    min_score: Annotated[float | None, typer.Option(help="Leave out answers below this score.")] = None,
    beams: Annotated[int | None, typer.Option(help="Prefixes kept at every level of the search.")] = None,
    rerank: Annotated[
        int | None, typer.Option(help="Items re-ranked by embedding; 0: decode IDs to the end, as in the paper.")
    ] = None,
    minus: MinusOption = None,
    diverse: Annotated[bool, typer.Option("--diverse", help="Answers that differ: one a subtree of codes.")] = False,
    open_first: Annotated[bool, typer.Option("--open", help="Open the first answer's picture.")] = False,
    version: Annotated[int | None, typer.Option(help="Search an older version (genius info --versions).")] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Search an index with a text, an image, or both. Without a target, answers have pictures if any item has.

    Examples:

      genius search my.genius "a red bicycle"

      genius search my.genius --image a.jpg --text "the same in blue" -k 5

      genius search my.genius --text bicycle --where "price < 500" --json

      genius search my.genius "a bicycle" --minus "a child" --diverse --open
    """
    from genius.index.searching import wanted_kind
    from genius.search import SearchRequest

    if words is not None and text is not None:
        raise GeniusError("ask once: with words behind the index, or with --text")
    text = words if text is None else text
    check_asked(text, image)
    with opened(path, model, version) as index:
        index.model.to(device)
        request = SearchRequest(k, where, min_score, beams, rerank, strict=modality is not None, diverse=diverse)
        kind = wanted(index, target, modality)
        query = Query(text, image, instruction, wanted_kind(kind, modality), None if minus is None else Query.of(minus))
        hits = index.search_many([query], request)[0]
        if not hits and target is None and modality is None and kind is not None:  # nobody asked for pictures
            hits = index.search_many([replace(query, target=None)], request)[0]
        hint = None if as_json else index.advice()
    if as_json:
        body = {"hits": [hit.to_dict() for hit in hits], "answerable": hits.answerable, "doubtful": hits.doubtful}
        emit(body if hits.why is None else {**body, "why": hits.why})
        return
    shows = protocol()
    for rank, hit in enumerate(hits, start=1):
        if shows is not None and hit.item.image is not None:
            show(hit.item, shows)
        likely = "" if hit.probability is None else f"  {100 * hit.probability:3.0f} %"
        print(f"{rank:3}  {hit.score:.4f}{likely}  {hit.id}{about(hit.item)}")
    if open_first and hits and isinstance(hits[0].item.image, str | Path):
        typer.launch(str(hits[0].item.image))
    if hits and hits.doubtful:
        print(f"probably nothing like that here: an answer is in this index with {100 * (hits.answerable or 0):.0f} %")
    if hits.why is not None:
        print(hits.why)
    if hint is not None:
        note(f"note: {hint}")


def show(item: Item, how: str) -> None:
    """A small picture above its line, in terminals that can."""
    from genius.errors import PictureError
    from genius.types import load_image

    assert item.image is not None
    with contextlib.suppress(PictureError):  # it was moved since: its line is there all the same
        print(inline(load_image(item.image, least=96), how))


def opened(path: Path, model: str | None, version: int | None) -> Index:
    from genius.cli.common import here
    from genius.index import Index

    return Index.open(here(path), model, version=version)


def wanted(index: Index, target: str | None, modality: str | None) -> str | None:
    """What is looked for where nobody said: something to look at, if the index has such things."""
    if target is not None or modality is not None:
        return None if target == "any" else target
    return "image" if index.kinds() & {Modality.IMAGE, Modality.PAIR} else None


def check_asked(text: str | None, image: Path | None) -> None:
    if not (text and text.strip()) and image is None:
        raise GeniusError("ask with words, --image, or both")


def about(item: Item) -> str:
    """A short line about an item for people."""
    text = " ".join(item.text.split()) if item.text else ""
    parts = [text if len(text) <= 70 else text[:69] + "…", ", ".join(f"{key}={value}" for key, value in item.metadata.items())]
    return "".join(f"  {part}" for part in parts if part)


@command
def duplicates(
    path: IndexArgument,
    threshold: Annotated[float, typer.Option(min=0.0, max=1.0, help="How like two items must be: 1 is the same vector.")] = 0.97,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Find items that are nearly the same: the same photo twice, resized, or taken a second later.

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
        print(f"{group.least:.4f}  {'  '.join(group.ids)}")
    print(
        f"{len(groups)} groups, {sum(len(group.ids) - 1 for group in groups)} items more than needed"
        if groups
        else "no duplicates"
    )
