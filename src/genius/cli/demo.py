"""`genius demo`: index a real collection, search it in every way, draw the answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.common import command, console, emit
from genius.cli.index import DeviceOption

if TYPE_CHECKING:
    from genius.demo import Shown


def _as_json(shown: Shown) -> dict[str, Any]:
    hits = [{"id": h.id, "score": h.score, "codes": list(h.codes), "name": h.item.metadata.get("name")} for h in shown.hits]
    return {"kind": shown.title, "text": shown.query.text, "hits": hits}


def _photos(output: Path) -> dict[str, Any]:
    """The on-ramp on photos, where a package with samples is installed."""
    from genius.demo import ask_with_parts, sample_photos

    files = sample_photos()
    place = output.with_name(f"{output.stem}-photos{output.suffix}")
    found = ask_with_parts(files, place) if files else []
    return {"index": str(place), "photos": len(files), "found": sum(one.photo == one.first for one in found)}


def register(app: typer.Typer) -> None:
    @app.command()
    @command
    def demo(
        output: Annotated[Path, typer.Option("--output", "-o", help="The index to make.")] = Path("demo.genius"),
        sheet: Annotated[Path, typer.Option(help="The contact sheet to draw.")] = Path("demo.png"),
        model: Annotated[str, typer.Option(help="Model folder or URI.")] = "bundled:mini",
        limit: Annotated[int, typer.Option(min=0, help="Index only about this many items (0: all).")] = 0,
        device: DeviceOption = "auto",
        json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    ) -> None:
        """See the main job done in one command: about 11,600 drawings indexed and searched, no hub, no download.

        The second run finds the index there and takes seconds.
        """
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from genius.demo import contact_sheet, demo_items, run_showcase
        from genius.index import Index
        from genius.model.genius import Genius

        collection = demo_items()
        items = collection[:: max(1, len(collection) // limit)] if limit else collection
        index = Index(output, Genius.from_pretrained(model, device=device))
        columns = (TextColumn("indexing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        if index.count() < len(items):
            with Progress(*columns, console=console) as progress:
                task = progress.add_task("indexing", total=len(items))
                index.add(items, on_progress=lambda report: progress.advance(task, report.added + report.existing))
        shown = run_showcase(index, collection)
        contact_sheet(shown, sheet)
        photos = _photos(output)
        if json:
            body = {"index": str(output), "items": index.count(), "sheet": str(sheet), "photos": photos}
            emit({**body, "searches": [_as_json(s) for s in shown]})
            return
        for s in shown:
            picture = f"[{Path(str(s.query.image)).stem}]" if s.query.image is not None else ""
            print(f"\n{s.title}:  {' + '.join(part for part in (picture, s.query.text) if part)}")
            for hit in s.hits[:5]:
                print(f"  {hit.score:6.3f}  {'-'.join(map(str, hit.codes)):<28}  {hit.item.metadata.get('name', hit.id)}")
        if photos["photos"]:
            print(f"\nphotos:  {photos['photos']} samples of scikit-image, indexed with --encoder bundled:mini, without pairs")
            print(f"  a part of each, asked with: the whole photo comes first for {photos['found']} of {photos['photos']}")
            print("  (that encoder knows drawings; with a CLIP words find photos: --encoder hf-hub:openai/clip-vit-base-patch32)")
        print(f"\n{index.count():,} items are in {output}; queries and answers are drawn in {sheet}. Next:")
        print(f'  genius search {output} --text "a sad face" --target image')
        print(f"  genius explain {output} --text umbrella        # how the ID is written, code by code")
        print(f"  genius serve {output}                          # a page: open http://127.0.0.1:8000")
        print(f"  genius export web {output} -o tab/             # the search in a browser tab (needs genius-search[export]),")
        print("  python -m http.server -d tab 8001              # ... then open http://localhost:8001")
        print("  genius index YOUR-FOLDER -o my.genius          # your own pictures and texts")
