"""`genius demo`: index a real collection, search it in every way, draw the answers. `genius index`, `genius info`, `genius
delete`, `genius optimize`: build and look after an index of your own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.common import command, console, emit, note, tell
from genius.errors import GeniusError, counted

if TYPE_CHECKING:
    from genius.demo import Shown
    from genius.index.ingest import IngestConfig
    from genius.scale.bulk import BulkReport

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
IndexArgument = Annotated[Path, typer.Argument(help="The index folder, such as my.genius.", metavar="INDEX")]
DeviceOption = Annotated[str, typer.Option(help="Where the model runs: auto, cpu, cuda, cuda:1.")]
ModelOption = Annotated[str | None, typer.Option(help="The model's folder or URI, if the index cannot find it by itself.")]
RayOption = Annotated[
    str | None,
    typer.Option(metavar="[ADDRESS]", help="Spread the work over a Ray cluster; without an address, over this machine."),
]
SHOWN = 20  # problems printed for people; --json has more


def register(app: typer.Typer) -> None:
    for function in (demo, index, info, delete, optimize):
        app.command(function.__name__)(function)


@command
def index(
    paths: Annotated[
        list[Path], typer.Argument(help="Files, folders or s3://...: images, texts, JSONL, CSV, TSV, Parquet.", metavar="PATH...")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The index folder; made if it is not there.")] = Path(
        "my.genius"
    ),
    model: Annotated[
        str | None,
        typer.Option(
            help="bundled:NAME, a folder, local-dir:PATH or hf-hub:OWNER/NAME. Default: the index's own, else bundled:mini."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Fit a model to these files over this encoder, without pairs: hf-hub:openai/clip-vit-base-patch32, or a folder."
        ),
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Of an index made with --encoder: fit new codes to all it holds.")
    ] = False,
    device: DeviceOption = "auto",
    id_column: Annotated[str | None, typer.Option(help="Of tables; default: id, item_id, uid, ... or the row number.")] = None,
    text_column: Annotated[str | None, typer.Option(help="Of tables; default: text, caption, description, title, ...")] = None,
    image_column: Annotated[str | None, typer.Option(help="Of tables: paths or bytes; default: image, image_path, ...")] = None,
    captions: Annotated[bool, typer.Option(help="Take a.jpg and a.txt beside it as one item.")] = True,
    content: Annotated[bool, typer.Option("--by-content", help="Notice changes by content, not by size and time.")] = False,
    exif: Annotated[
        bool, typer.Option("--exif", help="Keep when, where and with what photos were taken: taken, camera, latitude, longitude.")
    ] = False,
    watch: Annotated[float, typer.Option(min=0, help="Look for changes every so many seconds, until Ctrl-C; 0: once.")] = 0,
    prune: Annotated[bool, typer.Option(help="Delete items whose file or row is gone.")] = False,
    outside: Annotated[
        bool, typer.Option(help="Also read what links, ../ and absolute paths lead to outside of the given folder.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Items written at a time; each batch is safe once written.")] = 256,
    thumbnails: Annotated[int, typer.Option(min=0, help="Longest side of stored previews in pixels, 0 for none.")] = 256,
    ray: RayOption = None,
    workers: Annotated[int, typer.Option(min=0, help="With --ray: workers; 0: one a GPU, or one a processor.")] = 0,
    part_rows: Annotated[int, typer.Option(min=1, help="With --ray: items that a worker does in one go.")] = 1024,
    as_json: JsonOption = False,
) -> None:
    """Index images, texts and tables. Run it again at any time: only what changed is read again.

    Table columns that are neither id, text nor image become metadata for `genius search --where`. A run that was
    broken off goes on where it stopped.

    Examples:

      genius index photos/ -o photos.genius

      genius index products.csv --image-column photo -o shop.genius

      genius index notes/ photos/ --prune

      genius index photos/ -o my.genius --encoder hf-hub:openai/clip-vit-base-patch32

      genius index rows.parquet -o my.genius --ray ray://head:10001      (docs/scale.md)
    """
    from genius.cli.common import kept_if_interrupted, phases, sources_here
    from genius.encoders.base import find_device
    from genius.errors import KEPT
    from genius.index import Index
    from genius.index.folder import read_about
    from genius.index.ingest import IngestConfig, ingest
    from genius.index.metadata import TableColumns

    paths = sources_here(paths, output)
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:  # before a model is loaded for nothing
        raise GeniusError(f"no such file or folder: {missing}")
    if watch and (refit or as_json):
        raise GeniusError("--watch goes on until Ctrl-C: use it without --refit and --json")
    if model is not None and encoder is not None:
        raise GeniusError("--encoder fits a model of its own, --model names one: use either")
    config = IngestConfig(TableColumns(id_column, text_column, image_column), captions, content, prune, outside, batch, exif)
    where, fit, spread = find_device(device), None, None
    if ray is not None and (encoder is not None or refit or watch):
        raise GeniusError("--ray adds to an index whose model is there: fit one first, on a sample, without --ray; no --watch")
    if ray is not None:
        from genius.scale.bulk import BulkConfig, bulk_index

        chosen = model or (None if read_about(output) is not None else "bundled:mini")
        how = BulkConfig(ray, workers, part_rows, thumbnails, device)
        with phases() as tell, kept_if_interrupted():
            spread = bulk_index(paths, output, chosen, config, how, lambda done, total: tell("indexing", done, total), note)
        report, items, hint = spread.report, spread.items, None
    elif encoder is not None:
        from genius.fit.folder import index_with_encoder

        with phases() as tell, kept_if_interrupted():
            done = index_with_encoder(
                paths, output, encoder, config, device=where, thumbnails=thumbnails, tell=tell, say=None if as_json else note
            )
        report, fit, items, hint = done.report, done.fit, done.items, done.hint
    else:
        chosen = model or (None if read_about(output) is not None else "bundled:mini")
        with Index(output, chosen, thumbnails=thumbnails) as opened, phases() as tell, kept_if_interrupted():
            opened.model.to(where)
            report, items = ingest(opened, paths, config, lambda count: tell("indexing", count, 0)), opened.count()
            hint = opened.advice()
    if refit and fit is None:
        from genius.fit.folder import refit as fit_anew

        fit, hint = fit_anew(output, say=None if as_json else note), None
    body = {"index": str(output), "items": items, "advice": hint, **report.to_dict()}
    if fit is not None:
        body["fit"] = fit.to_dict()
    if spread is not None:
        body |= spread.to_dict()
    if as_json:
        emit(body)
        _leave_if_failed(spread)
        return
    rate = f", {body['items_per_second']:,.1f} items/s" if report.added + report.replaced else ""
    pruned = f", {report.deleted} deleted" if config.prune else ""
    console.print(
        f"{report.added} added, {report.replaced} replaced, {report.unchanged} unchanged{pruned}, "
        f"{report.problems.total} skipped in {report.seconds:.1f} s{rate}",
        highlight=False,
    )
    for line in report.problems[:SHOWN]:
        console.print(f"  skipped {line}", markup=False, highlight=False, soft_wrap=True)
    if report.problems.total > SHOWN:
        console.print(f"  ... and {report.problems.total - SHOWN} more (--json lists the first {KEPT:,})")
    if report.ignored:
        kinds = ", ".join(f"{suffix} ({count})" for suffix, count in report.ignored.most_common(8))
        console.print(f"  not indexable: {kinds}", markup=False, highlight=False)
        from genius.pictures import HEIF_HINT, HEIF_SUFFIXES

        if any(suffix in HEIF_SUFFIXES for suffix in report.ignored):
            console.print(f"  {HEIF_HINT}", markup=False, highlight=False)
    print(f"{output}: {counted(body['items'], 'item')}")
    if hint is not None:
        note(f"note: {hint}")
    if fit is not None:
        for line in fit.lines():
            print(f"  {line}")
        print(f'next: genius search {output} "what you look for"')
    _leave_if_failed(spread)
    if watch:
        note(f"looking for changes every {watch:g} s; Ctrl-C ends it")
        for line in _changes(output, paths, config, watch, where):
            note(line)


def _changes(output: Path, paths: list[Path], config: IngestConfig, every: float, where: Any) -> Iterator[str]:
    """Index again and again; a line for each time that something had changed."""
    from genius.index import Index
    from genius.index.ingest import ingest

    with Index.open(output) as index:
        index.model.to(where)
        while True:
            time.sleep(every)
            report = ingest(index, paths, config)
            if report.added or report.replaced or report.deleted:
                now = counted(index.count(), "item")
                yield f"{report.added} added, {report.replaced} replaced, {report.deleted} deleted: {now}"


def _leave_if_failed(spread: BulkReport | None) -> None:
    """Parts that no worker could do are named, and the status says so: running again tries them again."""
    if spread is not None and spread.failed:
        for line in spread.failed[:SHOWN]:
            note(f"not done: {line}")
        note(f"not done: {len(spread.failed)} of {counted(spread.parts, 'part')}; run it again")
        raise typer.Exit(1)


@command
def info(
    path: IndexArgument,
    versions: Annotated[bool, typer.Option(help="List the versions that can still be opened.")] = False,
    as_json: JsonOption = False,
) -> None:
    """What an index holds: items by kind, metadata columns for --where, its model, its size."""
    from genius.index.folder import INSIDE, about_of, describe, open_store
    from genius.index.paths import MODEL
    from genius.model.config import load_knows

    about = about_of(path)
    store = open_store(path, about)
    body = describe(path, about, store.at(store.latest()))
    if versions:
        body["versions"] = store.versions()
    body["advice"] = _advice(path)
    if as_json:
        emit(body)
        return
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in body["modalities"].items() if count)
    print(
        f"{path}: {counted(body['items'], 'item')} ({kinds or 'empty'}), {body['bytes'] / 1e6:,.1f} MB, version {body['version']}"
    )
    source = body["model"] or "not recorded"
    if source == INSIDE:
        known = load_knows(path / MODEL)
        source = f"fitted to this collection, over {'?' if known is None else known.fit.get('encoder', '?')}"
    print(f"  model     {source} ({body['fingerprint'][:8]})")
    print(f"  IDs       {len(body['levels'])} codes of {' x '.join(map(str, body['levels']))}; embeddings of {body['width']}")
    if body["advice"] is not None:
        print(f"  note      {body['advice']}")
    for name, kind in body["metadata"].items():
        print(f"  metadata  {name} ({kind})")
    for version in body.get("versions", []):
        print(f"  version   {version['version']}  {version['time'][:19]}  {counted(version['items'], 'item')}")


def _advice(path: Path) -> str | None:
    """What an index should be told about, if its model can be loaded; `info` answers in any case."""
    from genius.index import Index

    try:
        with Index.open(path, read_only=True) as opened:
            return opened.advice()
    except GeniusError:
        return None


@command
def delete(
    path: IndexArgument,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of the items to delete.", metavar="ID...")] = None,
    where: Annotated[str | None, typer.Option(help="Delete what matches this condition instead.")] = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete items by id, or all that match a condition."""
    from genius.index import Index

    if bool(ids) == (where is not None):
        raise GeniusError("name ids to delete, or a condition with --where")
    with Index.open(path, model) as opened:
        wanted = ids if ids else [item.id for item in opened.items(where)]
        gone = opened.delete(wanted, missing="raise" if ids else "skip")
        left = opened.count()
    tell({"deleted": gone, "items": left}, f"{gone} deleted, {left} left", as_json)


@command
def optimize(
    path: IndexArgument,
    keep_days: Annotated[float, typer.Option(min=0, help="Older versions are dropped for good.")] = 7.0,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge small files, drop old versions, and make opening quick. Safe while others search."""
    from datetime import timedelta

    from genius.index import Index

    with Index.open(path, model) as opened:
        before = opened.info()["bytes"]
        opened.optimize(keep=timedelta(days=keep_days))
        after = opened.info()["bytes"]
    tell({"bytes_before": before, "bytes_after": after}, f"{before / 1e6:,.1f} MB -> {after / 1e6:,.1f} MB", as_json)


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


@command
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The index to make.")] = Path("demo.genius"),
    sheet: Annotated[Path, typer.Option(help="The contact sheet to draw.")] = Path("demo.png"),
    model: Annotated[str, typer.Option(help="Model folder or URI.")] = "bundled:mini",
    limit: Annotated[int, typer.Option(min=0, help="Index only about this many items (0: all).")] = 0,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
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
    if as_json:
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
    print(f"\n{output} holds {counted(index.count(), 'item')}; queries and answers are drawn in {sheet}. Next:")
    print(f'  genius search {output} --text "a sad face" --target image')
    print(f"  genius explain {output} --text umbrella        # how the ID is written, code by code")
    print(f"  genius serve {output}                          # a page: open http://127.0.0.1:8000")
    print(f"  genius export web {output} -o tab/             # the search in a browser tab (needs genius-search[export]),")
    print("  python -m http.server -d tab 8001              # ... then open http://localhost:8001")
    print("  genius index YOUR-FOLDER -o my.genius          # your own pictures and texts")
