"""`genius publish`: an index into an object store (`s3://...`)."""

from __future__ import annotations

from typing import Annotated

import typer

from genius.cli.common import command, emit
from genius.cli.index import IndexArgument, JsonOption
from genius.errors import GeniusError
from genius.scale.addresses import url_of


def register(app: typer.Typer) -> None:
    app.command("publish")(publish)


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
    if as_json:
        emit({"index": str(path), "url": address, "version": book.head, "items": book.items})
    else:
        print(f"{address}: {book.items:,} items, version {book.head}")
