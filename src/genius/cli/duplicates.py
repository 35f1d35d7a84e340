"""`genius duplicates`: items of an index that are nearly the same."""

from __future__ import annotations

from typing import Annotated

import typer

from genius.cli.common import command, emit
from genius.cli.index import DeviceOption, IndexArgument, JsonOption, ModelOption


def register(app: typer.Typer) -> None:
    app.command("duplicates")(duplicates)


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
