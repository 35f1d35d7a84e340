"""`genius fields`: the metadata fields of an index, from the shell."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from genius.cli.common import command, emit
from genius.cli.index import IndexArgument, JsonOption, ModelOption

FieldArgument = Annotated[str, typer.Argument(help="The field's name.", metavar="FIELD")]


def register(app: typer.Typer) -> None:
    app.command("list")(listing)
    app.command("drop")(drop)
    app.command("rename")(rename)
    app.command("retype")(retype)


@command
def listing(path: IndexArgument, as_json: JsonOption = False) -> None:
    """What fields there are, what each holds, and how many items have it.

    A field that no item has any more is free: its name may come back with another kind.

    Examples:

      genius fields list my.genius
    """
    from genius.index.fields import fields
    from genius.index.folder import about_of, open_store

    store = open_store(path, about_of(path))
    found = fields(store.at(store.latest()))
    if as_json:
        emit({"fields": [field.to_dict() for field in found]})
        return
    for field in found:
        print(f"{field.name}  {field.kind}  {field.items:,} items")
    if not found:
        print("no fields")


@command
def drop(path: IndexArgument, name: FieldArgument, model: ModelOption = None, as_json: JsonOption = False) -> None:
    """Take a field away, from the index and from every item.

    Examples:

      genius fields drop my.genius internal_note
    """
    with _open(path, model) as index:
        items = index.drop_field(name)
    _tell({"dropped": name, "items": items}, f"dropped {name!r} from {items:,} items", as_json)


@command
def rename(
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
    with _open(path, model) as index:
        items = index.rename_field(name, new)
    _tell({"renamed": name, "to": new, "items": items}, f"{name!r} is {new!r} now, in {items:,} items", as_json)


@command
def retype(
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
    with _open(path, model) as index:
        items = index.retype_field(name, kind, lossy=lossy)
    _tell({"retyped": name, "kind": kind, "items": items}, f"{name!r} holds {kind} now, in {items:,} items", as_json)


def _open(path: Any, model: str | None) -> Any:
    from genius.index import Index

    return Index.open(path, model)


def _tell(body: dict[str, Any], line: str, as_json: bool) -> None:
    if as_json:
        emit(body)
    else:
        print(line)
