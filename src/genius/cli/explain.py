"""`genius explain`: how the ID of an answer is written, code by code, and what lives under the codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.common import command, emit
from genius.cli.index import DeviceOption, IndexArgument, JsonOption, ModelOption
from genius.cli.search import (
    ImageOption,
    InstructionOption,
    MinusOption,
    ModalityOption,
    TargetOption,
    TextOption,
    WhereOption,
    WordsArgument,
    about,
    opened,
    wanted,
)
from genius.errors import GeniusError

if TYPE_CHECKING:
    from genius.index import Index
    from genius.index.explaining import Explanation, Written


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


@command
def explain(
    path: IndexArgument,
    words: WordsArgument = None,
    text: TextOption = None,
    image: ImageOption = None,
    target: TargetOption = None,
    modality: ModalityOption = None,
    instruction: InstructionOption = None,
    k: Annotated[int, typer.Option("-k", help="How many answers to explain.")] = 3,
    where: WhereOption = None,
    minus: MinusOption = None,
    beams: Annotated[int, typer.Option(min=1, help="Codes of every step that are shown, besides those of answers.")] = 3,
    rejected: Annotated[int, typer.Option(min=0, help="Codes of every step that were not kept.")] = 2,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Explain this item instead (repeatable).")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Show what lives under these codes instead, such as 0,12,7; * is any code: *,12.")
    ] = None,
    neighbours: Annotated[int, typer.Option(min=0, help="Items shown under each code of an item.")] = 3,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show how the IDs of answers are written: at every step the codes that were kept and rejected, how likely each was
    (log p), and what lives under it. Or where an item lives, or what lives under some codes.

    Examples:

      genius explain my.genius "a red bicycle"

      genius explain my.genius --id photos/a.jpg

      genius explain my.genius --prefix 0,12
    """
    text = words if text is None else text
    if sum((bool(text or image), bool(ids), prefix is not None)) != 1:
        raise GeniusError("explain a query (words, --text, --image), items (--id), or codes (--prefix)")
    with opened(path, model, None) as index:
        index.model.to(device)
        if prefix is not None:
            _explain_prefix(index, _parse_prefix(prefix), neighbours, as_json)
            return
        if ids:
            _explain_items(index, ids, neighbours, as_json)
            return
        from genius.index.searching import wanted_kind
        from genius.search import SearchRequest
        from genius.types import Query

        kind = wanted_kind(wanted(index, target, modality), modality)
        query = Query(text, image, instruction, kind, None if minus is None else Query.of(minus))
        request = SearchRequest(k, where, strict=modality is not None)
        found = index.explain(query, request, shown=beams, rejected=rejected)
    if as_json:
        emit(found.to_dict())
        return
    for line in _lines(found):
        print(line)


def _lines(found: Explanation) -> Iterator[str]:
    """An explanation for people."""
    if not found.answers:
        yield found.why or "nothing found"
    for written in found.written:
        yield from _writing(written, found.scanned)
    for rank, answer in enumerate(found.answers, start=1):
        hit = answer.hit
        likely = " ".join("given" if p is None else f"{p:.2f}" for p in answer.log_p)
        fate = (
            "among the beams to the end" if answer.lost_at is None else f"not among the beams from code {answer.lost_at + 1} on"
        )
        yield f"{rank:3}  {hit.score:.4f}  {hit.id}{about(hit.item)}"
        yield f"     ID {' '.join(map(str, hit.codes))}   log p {likely}   {fate}"


def _writing(written: Written, scanned: bool) -> Iterator[str]:
    kind = "any kind of item" if written.target is None else f"items of the kind {written.target}"
    if scanned:
        end = f"; so few items ({written.compared:,}) are all compared, the codes decide nothing"
    elif written.stop is None:
        end = "" if not written.compared else f"; {written.compared:,} items below its beams are compared"
    else:
        end = f"; after {written.stop} codes at most {written.compared:,} items are left, and those are compared"
    yield f"looking for {kind}, the decoder writes{end}:"
    for node in written.tree():
        yield from _branch(node, 1)
    yield ""


def _branch(node: dict[str, Any], depth: int) -> Iterator[str]:
    """A code and what was written after it; a code that leads to one item only names it."""
    alone = node["items"] == 1
    code = node["prefix"][-1]
    likely = "given" if node["log_p"] is None else f"{node['log_p']:7.2f}"
    mark = "*" if node["answer"] else " " if node["kept"] else "x"
    what = node["examples"][0] if alone and node["examples"] else ", ".join(node["words"])
    yield f"{mark} {'  ' * depth}{code:<{max(1, 24 - 2 * depth)}} {likely:>7} {node['items']:>9,} items  {what}".rstrip()
    if not alone:
        for child in node["children"]:
            yield from _branch(child, depth + 1)


def _explain_items(index: Index, ids: Sequence[str], neighbours: int, as_json: bool) -> None:
    paths = [_path_of(index, item_id, index.codes(item_id), neighbours) for item_id in ids]
    if as_json:
        emit({"results": paths})
        return
    for result in paths:
        print(f"{result['id']}  ID {' '.join(map(str, result['codes']))}")
        for step in result["path"]:
            others = ", ".join(step["others"]) or "nothing else"
            print(f"  {' '.join(map(str, step['prefix'])):<40} {step['count']:>9,} items   {others}")


def _path_of(index: Index, item_id: str, codes: Sequence[int], neighbours: int) -> dict[str, Any]:
    """Each prefix of an ID: how many items live there and which others, for as long as there are others."""
    steps = []
    for level in range(1, len(codes) + 1):
        view = index.below(codes[:level], limit=neighbours + 1)
        others = [item.id for item in view.items if item.id != item_id][:neighbours]
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


def _explain_prefix(index: Index, prefix: list[int | None], shown: int, as_json: bool) -> None:
    view = index.below(prefix, limit=shown)
    if as_json:
        emit(view.to_dict())
        return
    written = " ".join("*" if code is None else str(code) for code in prefix)
    print(f"{view.count:,} items under {written or 'everything'}")
    for code, count in list(view.children.items())[:20]:
        print(f"  next code {code:>6}  {count:>9,} items")
    for item in view.items:
        print(f"  {item.id}{about(item)}")
