"""An index over time: is it whole and how to have it back (`genius check`, `repair`, `snapshot`, `restore`), its metadata fields
(`genius fields`), and a copy in an object store (`genius publish`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import add_group, command, console, emit, tell
from genius.cli.index import IndexArgument, JsonOption, ModelOption
from genius.errors import GeniusError, counted
from genius.files import url_of

VersionOption = Annotated[int | None, typer.Option(help="An older version instead of the newest (genius info --versions).")]
SHOWN = 50  # lines printed for people; --json has more
FieldArgument = Annotated[str, typer.Argument(help="The field's name.", metavar="FIELD")]


def register(app: typer.Typer) -> None:
    for function in (check, repair, snapshot, restore, publish):
        app.command(function.__name__)(function)
    about = "List, drop, rename and retype the metadata fields of an index."
    add_group(app, "fields", about, list=list_fields, drop=drop_field, rename=rename_field, retype=retype_field)


@command
def check(
    path: IndexArgument,
    fast: Annotated[bool, typer.Option("--fast", help="Sizes, and checksums of what is small: seconds, however large.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare an index with its checksums: every file, every row, every cache. Nothing is changed.

    Names whatever is not as it was written. Exit status 0: all is well; 1: damage was found; 2: there is no index.
    Safe while others search and write.

    Examples:

      genius check my.genius

      genius check my.genius --fast --json
    """
    from genius.index.check import check as look

    report = look(path, fast)
    if as_json:
        emit(report.to_dict())
    else:
        for line in report.problems[:SHOWN]:
            print(f"damaged: {line}")
        if report.problems.total > SHOWN:
            print(f"... and {report.problems.total - SHOWN} more")
        for line in report.notes:
            console.print(f"note: {line}", markup=False, highlight=False, soft_wrap=True)
        read = "sizes of" if fast else f"{counted(report.items, 'item')} and"
        verdict = "all is well" if report.ok else "DAMAGED"
        print(f"{path}: {verdict} ({read} {counted(report.files, 'file')} compared, {report.seconds:.1f} s)")
        if not report.ok:
            console.print(f"genius repair {path} brings back what can be read", highlight=False, soft_wrap=True)
    if not report.ok:
        raise typer.Exit(1)


@command
def repair(
    path: IndexArgument,
    model: Annotated[
        str | None, typer.Option(help="The index's model: needed only if nothing in the folder says which one it is.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a damaged index whole again: the newest version that can be read, and of it every sound item.

    Writes genius.json and the ledger anew from the table; drops rows that are not as they were written, and names them.
    Nothing is thrown away: what is passed over lies in the folder aside/ afterwards. On a sound index it does nothing.

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
    for line in report.lost[:SHOWN]:
        print(f"lost: {line}")
    if report.lost.total > SHOWN:
        print(f"... and {report.lost.total - SHOWN} more")
    print(f"{path}: {counted(report.items, 'item')}, version {report.version}")


@command
def snapshot(
    path: IndexArgument,
    target: Annotated[Path, typer.Argument(help="A folder for the copy; it must not exist.", metavar="DEST")],
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy an index as it is at this moment, while others search and write.

    The copy is an index itself: search it, check it, restore from it. Every row is compared with its checksum on the way.
    Pictures that were indexed by path and the model are named in it, not copied.

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
    replace: Annotated[bool, typer.Option("--replace", help="Put these items in place of all that the index holds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring a snapshot back: as a new index, or (--replace) into one that others are searching.

    Into an index that exists, it is one change: searches see either all of the old items or all of the restored ones, and
    the old state stays an older version. To go back to such a version, name the index as its own snapshot.

    Examples:

      genius restore backups/monday.genius my.genius --replace

      genius restore my.genius my.genius --version 12 --replace
    """
    from genius.index.repair import restore as bring

    result = bring(source, path, version, replace_items=replace)
    tell(result.to_dict(), f"{path}: {counted(result.items, 'item')} of {source}, version {result.version}", as_json)


@command
def list_fields(path: IndexArgument, as_json: JsonOption = False) -> None:
    """What fields there are, what each holds, and how many items have it.

    A field that no item has any more is free: its name may come back with another kind.

    Examples:

      genius fields list my.genius
    """
    from genius.index.folder import about_of, open_store
    from genius.index.writing import fields_of

    store = open_store(path, about_of(path))
    found = fields_of(store.at(store.latest()))
    if as_json:
        emit({"fields": [field.to_dict() for field in found]})
        return
    for field in found:
        print(f"{field.name}  {field.kind}  {counted(field.items, 'item')}")
    if not found:
        print("no fields")


@command
def drop_field(path: IndexArgument, name: FieldArgument, model: ModelOption = None, as_json: JsonOption = False) -> None:
    """Take a field away, from the index and from every item.

    Examples:

      genius fields drop my.genius internal_note
    """
    from genius.index import Index

    with Index.open(path, model) as index:
        items = index.drop_field(name)
    tell({"dropped": name, "items": items}, f"dropped {name!r} from {counted(items, 'item')}", as_json)


@command
def rename_field(
    path: IndexArgument,
    name: FieldArgument,
    new: Annotated[str, typer.Argument(help="Its new name.", metavar="NEW")],
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a field another name.

    Examples:

      genius fields rename my.genius cost price
    """
    from genius.index import Index

    with Index.open(path, model) as index:
        items = index.rename_field(name, new)
    tell({"renamed": name, "to": new, "items": items}, f"{name!r} is {new!r} now, in {counted(items, 'item')}", as_json)


@command
def retype_field(
    path: IndexArgument,
    name: FieldArgument,
    kind: Annotated[str, typer.Argument(help="text, number or boolean.", metavar="KIND")],
    lossy: Annotated[bool, typer.Option("--lossy", help="Drop values that cannot become that kind.")] = False,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a field hold another kind: the text "12" becomes the number 12.

    Values that cannot are counted, and nothing is changed, unless --lossy drops them.

    Examples:

      genius fields retype my.genius price number
    """
    from genius.index import Index

    with Index.open(path, model) as index:
        items = index.retype_field(name, kind, lossy=lossy)
    tell({"retyped": name, "kind": kind, "items": items}, f"{name!r} holds {kind} now, in {counted(items, 'item')}", as_json)


@command
def publish(
    path: IndexArgument,
    url: Annotated[str, typer.Argument(help="Where to: s3://BUCKET/NAME.genius.", metavar="URL")],
    alone: Annotated[
        bool, typer.Option("--alone", help="Nobody else publishes there: forget what a publish that was killed left.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy an index to an object store, or bring the copy there up to date: only what is new is sent.

    Others search and serve it from there: `genius serve s3://BUCKET/NAME.genius` follows every later `publish`.

    Example:  genius publish my.genius s3://shop/my.genius
    """
    from genius.scale.objects import publish as send

    address = url_of(url)
    if address is None:
        raise GeniusError(f"not an address in an object store: {url} (s3://BUCKET/NAME.genius)")
    book = send(path, address, alone)
    body = {"index": str(path), "url": address, "version": book.head, "items": book.items}
    tell(body, f"{address}: {counted(book.items, 'item')}, version {book.head}", as_json)
