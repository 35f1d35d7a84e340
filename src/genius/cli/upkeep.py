"""Keep an index safe: `genius check`, `repair`, `snapshot`, `restore`, and a copy in an object store (`publish`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, console, emit, note, tell
from genius.cli.index import DeviceOption, IndexArgument, JsonOption, ModelOption
from genius.errors import GeniusError, Problems, counted
from genius.files import url_of

VersionOption = Annotated[
    int | None, typer.Option(help="An older version instead of the newest. `genius info --versions` lists them.")
]
SHOWN = 50  # lines printed for people; --json has more


def register(app: typer.Typer) -> None:
    for function in (check, repair, snapshot, restore, reencode, publish, learn):
        app.command(function.__name__)(function)


@command
def learn(
    path: IndexArgument,
    queries: Annotated[
        Path | None,
        typer.Option(help="JSONL file, one query per line: the fields of a search request (text, image, target), or vector."),
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the corrections learned before.")] = False,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Learn a score bias per item from a query log, to correct hubs: items that are similar to every query.

    Needs at least 64 different queries of one direction, such as text -> image. If lines have "clicked" (ids of relevant
    items), the strength of the correction is chosen by them. Otherwise it is set from the number and the agreement of the
    queries. No text and no image is stored. `genius search --no-item-bias` ignores the bias.

    Examples:
      genius learn my.genius --queries log.jsonl
      genius learn my.genius --forget
    """
    from dataclasses import asdict

    from genius.index import Index
    from genius.index.learning import read_log

    if forget == (queries is not None):
        raise GeniusError("give either --queries FILE or --forget")
    with Index.open(path, model) as index:
        if forget:
            forgotten = index.forget()
            tell({"forgotten": forgotten}, "forgotten" if forgotten else "there was nothing to forget", as_json)
            return
        assert queries is not None
        index.model.to(device)
        report = index.learn(read_log(queries))
    if as_json:
        emit(asdict(report))
        return
    left_out = f"{report.ignored:,} unlike this collection, {report.skipped:,} unreadable"
    print(f"learned from {counted(report.queries, 'query vector')} (left out: {left_out})")
    for direction in report.directions:
        shown = f"weight {direction.weight:.2f}, temperature {direction.temperature:g}, {direction.queries:,} queries"
        print(f"  {direction.query} -> {direction.target}: {shown}")


@command
def check(
    path: IndexArgument,
    fast: Annotated[bool, typer.Option("--fast", help="Compare only file sizes, and checksums of small files.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify an index against its checksums. Nothing is changed.

    Lists every damaged file and row. Safe while others search and write. Exit status 0: no damage. 1: damage. 2: no index.

    Examples:
      genius check my.genius
      genius check my.genius --fast --json
    """
    from genius.index.check import check as look

    report = look(path, fast)
    if as_json:
        emit(report.to_dict())
    else:
        _print_first("damaged", report.problems)
        for line in report.notes:
            console.print(f"note: {line}", markup=False, highlight=False, soft_wrap=True)
        read = "sizes of" if fast else f"{counted(report.items, 'item')} and"
        verdict = "all is well" if report.ok else "DAMAGED"
        print(f"{path}: {verdict} ({read} {counted(report.files, 'file')} compared, {report.seconds:.1f} s)")
        if not report.ok:
            console.print(f"to repair it: genius repair {path}", highlight=False, soft_wrap=True)
    if not report.ok:
        raise typer.Exit(1)


def _print_first(what: str, problems: Problems) -> None:
    for line in problems[:SHOWN]:
        print(f"{what}: {line}")
    if problems.total > SHOWN:
        print(f"... and {problems.total - SHOWN} more")


@command
def repair(
    path: IndexArgument,
    model: Annotated[str | None, typer.Option(help="The index's model, if nothing in the folder names it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Repair a damaged index: keep every undamaged item of the newest readable version.

    Lists the rows that are lost. Nothing is deleted: damaged files are moved to the folder aside/. An undamaged index is
    not changed.

    Examples:
      genius repair my.genius
      genius repair my.genius --model bundled:mini --json
    """
    from genius.index.repair import repair as mend

    report = mend(path, model)
    if as_json:
        emit(report.to_dict())
        return
    for line in report.done:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    _print_first("lost", report.lost)
    print(f"{path}: {counted(report.items, 'item')}, version {report.version}")


@command
def snapshot(
    path: IndexArgument,
    target: Annotated[Path, typer.Argument(help="A folder for the copy; it must not exist.", metavar="DEST")],
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an index as of now, while others search and write.

    The copy is an index: it can be searched, checked and restored from. Every row is verified against its checksum. Image
    files and the model are referenced, not copied.

    Examples:
      genius snapshot my.genius backups/monday.genius
      genius restore backups/monday.genius my.genius --replace
    """
    from genius.index.repair import snapshot as copy

    result = copy(path, target, version)
    tell(result.to_dict(), f"{target}: {counted(result.items, 'item')} of {path}, version {result.version}", as_json)


@command
def restore(
    source: Annotated[Path, typer.Argument(help="A snapshot, or any index of the same model.", metavar="SNAPSHOT")],
    path: IndexArgument,
    version: VersionOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace all items of an existing index.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Restore a snapshot as a new index, or with --replace into an index that is in use.

    Replacing is atomic: a search sees either all old items or all restored ones. The old state remains as an older
    version. To return to an older version, give the index as its own snapshot.

    Examples:
      genius restore backups/monday.genius my.genius --replace
      genius restore my.genius my.genius --version 12 --replace
    """
    from genius.index.repair import restore as bring

    result = bring(source, path, version, replace_items=replace)
    tell(result.to_dict(), f"{path}: {counted(result.items, 'item')} of {source}, version {result.version}", as_json)


@command
def reencode(
    path: IndexArgument,
    encoder: Annotated[
        str | None,
        typer.Option(help="The new encoder: hf-hub:OWNER/NAME, bundled:NAME or a folder. Codes are fitted to its vectors."),
    ] = None,
    back: Annotated[bool, typer.Option("--back", help="Return to the encoder before the last switch.")] = False,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out items whose image file is gone, instead of failing.")
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Switch an index to another encoder while others search and write.

    Searches use the old vectors until all items are encoded. Open processes follow the switch. After a kill, run it again:
    finished parts are re-used. The old index is kept until the next switch.

    Examples:
      genius reencode my.genius --encoder hf-hub:google/siglip2-base-patch16-224
      genius reencode my.genius --back
    """
    from genius.cli.common import kept_if_interrupted, phases
    from genius.encoders.base import find_device
    from genius.fit import reencode as switching

    if back == (encoder is not None):
        raise GeniusError("name the new encoder (--encoder URI), or return to the one before (--back)")
    place = find_device(device)
    if encoder is None:
        returned = switching.go_back(path, device=place)
        tell(returned.to_dict(), f"{path}: {counted(returned.items, 'item')}, with the encoder of before", as_json)
        return
    say = None if as_json else note
    try:
        with phases() as progress, kept_if_interrupted():
            done = switching.reencode(path, encoder, skip_missing=skip_missing, device=place, tell=progress, say=say)
    except switching.OriginalsMissing as missing:
        for line in missing.problems[:SHOWN]:
            note(f"  missing {line}")
        raise
    if as_json:
        emit(done.to_dict())
        return
    for line in done.skipped[:SHOWN]:
        note(f"  left out {line}")
    print(f"{path}: {counted(done.items, 'item')} under {done.encoder}; genius reencode {path} --back undoes it")


@command
def publish(
    path: IndexArgument,
    url: Annotated[str, typer.Argument(help="Destination: s3://BUCKET/NAME.genius.", metavar="URL")],
    alone: Annotated[
        bool, typer.Option("--alone", help="Discard what an interrupted publish left. Only if no other process publishes there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy an index to an object store, or update the copy. Only new files are sent.

    `genius serve s3://BUCKET/NAME.genius` serves the copy and follows later updates.

    Example:
      genius publish my.genius s3://shop/my.genius
    """
    from genius.scale.objects import publish as send

    address = url_of(url)
    if address is None:
        raise GeniusError(f"not an address in an object store: {url} (s3://BUCKET/NAME.genius)")
    state = send(path, address, alone)
    body = {"index": str(path), "url": address, "version": state.head, "items": state.items}
    tell(body, f"{address}: {counted(state.items, 'item')}, version {state.head}", as_json)
