"""What commands do with addresses in an object store (`s3://...`) in place of paths."""

from __future__ import annotations

from pathlib import Path

from genius.cli.common import note
from genius.errors import GeniusError
from genius.scale.addresses import url_of


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
