"""`genius publish`, and what other commands do with addresses in an object store (`s3://...`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import command, emit, note
from genius.cli.index import IndexArgument, JsonOption
from genius.errors import GeniusError
from genius.scale.addresses import url_of


def register(app: typer.Typer) -> None:
    app.command("publish")(publish)


@command
def publish(
    path: IndexArgument,
    url: Annotated[str, typer.Argument(help="Where to: s3://BUCKET/NAME.genius.", metavar="URL")],
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
    book = send(path, address)
    if as_json:
        emit({"index": str(path), "url": address, "version": book.head, "items": book.items})
    else:
        print(f"{address}: {book.items:,} items, version {book.head}")


def here(path: Path, follow: bool = False) -> Path:
    """The folder of an index: of one in an object store, a local copy that is brought up to date (and kept so)."""
    address = url_of(path)
    if address is None:
        return path
    from genius.scale import objects

    folder = objects.local_copy(address)
    if follow:
        objects.follow(address)
    return folder


def sources_here(paths: list[Path], output: Path) -> list[Path]:
    """Sources as files: those in an object store are copied beside the index."""
    if url_of(output) is not None:
        raise GeniusError(f"an index is written on a disk: index into a folder, then genius publish FOLDER {url_of(output)}")
    found = []
    for path in paths:
        address = url_of(path)
        if address is None:
            found.append(path)
            continue
        from genius.scale.objects import fetch_sources

        folder = output.with_name(f"{output.name}.sources")
        note(f"copying {address} to {folder}")
        found.append(fetch_sources(address, folder))
    return found
