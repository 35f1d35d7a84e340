"""`genius index`, `info`, `delete`, `optimize`: build and maintain an index. `genius demo`: the same on drawings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genius.cli.common import command, emit, note, tell
from genius.errors import GeniusError, counted, without_controls

if TYPE_CHECKING:
    from genius.demo import DemoResult
    from genius.index.ingest import Indexed, IngestConfig, IngestReport
    from genius.model.known_items import Knows

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
IndexArgument = Annotated[Path, typer.Argument(help="The index folder, such as my.genius.", metavar="INDEX")]
DeviceOption = Annotated[str, typer.Option(help="Where the model runs: auto, cpu, cuda, cuda:1.")]
ModelOption = Annotated[str | None, typer.Option(help="Folder or URI of the index's model, if it has moved.")]
SHOWN = 20  # problems printed for people; --json has more


def register(app: typer.Typer) -> None:
    for function in (demo, index, info, delete, optimize):
        app.command(function.__name__)(function)


@command
def index(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files, folders or s3://...: images, texts, JSONL, CSV, TSV, Parquet.", metavar="PATH"),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Index folder; created if it does not exist.")] = Path(
        "my.genius"
    ),
    model: Annotated[
        str | None,
        typer.Option(
            help="bundled:NAME, a folder, local-dir:PATH or hf-hub:OWNER/NAME. Default: the index's model, else bundled:mini."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Encoder for a new index, without training pairs: hf-hub:OWNER/NAME, or a folder."),
    ] = None,
    fit: Annotated[
        bool,
        typer.Option(
            "--fit", help="Fit codes and decoder now. Default: only for collections that are too large for exhaustive search."
        ),
    ] = False,
    refit: Annotated[
        bool, typer.Option("--refit", help="Fit codes and decoder again, to all items of an index made with --encoder.")
    ] = False,
    device: DeviceOption = "auto",
    id_column: Annotated[
        str | None, typer.Option(help="Table column with ids. Default: id, item_id, uid, ... or the row number.")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Table column with texts. Default: text, caption, description, title, ...")
    ] = None,
    image_column: Annotated[
        str | None, typer.Option(help="Table column with image paths or bytes. Default: image, image_path, ...")
    ] = None,
    vector_column: Annotated[
        str | None, typer.Option(help="Table column with your own embedding vectors. No encoder runs.")
    ] = None,
    as_text: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Table column to keep as text even if its values look like numbers. Repeatable."),
    ] = None,
    ids: Annotated[Path | None, typer.Option(help="For vectors in a .npy file: a text file with one id per line.")] = None,
    modality: Annotated[str, typer.Option(help="For vectors in a .npy file: their modality: image, text or pair.")] = "text",
    query_vectors: Annotated[
        Path | None,
        typer.Option(help="For your own vectors: a .npy file of query vectors. Codes are fitted to their distribution."),
    ] = None,
    no_captions: Annotated[
        bool,
        typer.Option(
            "--no-captions",
            help="Index a text file named as an image (a.jpg, a.txt) as an item of its own, not as the image's caption.",
        ),
    ] = False,
    content: Annotated[
        bool, typer.Option("--by-content", help="Detect changed files by checksum instead of size and modification time.")
    ] = False,
    exif: Annotated[
        bool, typer.Option("--exif", help="Store EXIF data as metadata: taken, camera, latitude, longitude.")
    ] = False,
    watch: Annotated[
        float, typer.Option(metavar="N", min=0, help="Look for changed files every N seconds until Ctrl-C. 0: index once.")
    ] = 0,
    prune: Annotated[bool, typer.Option("--prune", help="Delete items whose file or row is gone.")] = False,
    undelete: Annotated[bool, typer.Option("--undelete", help="Index again items that were deleted with genius delete.")] = False,
    outside: Annotated[
        bool, typer.Option("--outside", help="Follow links, ../ and absolute paths that leave the given folder.")
    ] = False,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Items per commit. A committed batch survives a crash.")] = 256,
    thumbnails: Annotated[
        int, typer.Option(metavar="N", min=0, help="Longest side of stored previews, in pixels. 0: none.")
    ] = 256,
    codes_only: Annotated[
        bool,
        typer.Option("--codes-only", help="For a new index: store codes alone, about a sixth of the space, and rank by them."),
    ] = False,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Encode on a Ray cluster; local: one on this machine.")
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=0, help="With --ray: number of workers. 0: one per GPU, or one per CPU.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Index images, texts and tables. Run it again at any time: only changed files are read.

    Table columns other than id, text and image become metadata, which `genius search --where` filters. A run that was
    stopped continues where it stopped. Exit status 1: files or rows were skipped.

    Examples:
      genius index photos/ -o photos.genius
      genius index products.csv --image-column photo -o shop.genius
      genius index notes/ photos/ --prune
      genius index photos/ --encoder hf-hub:openai/clip-vit-base-patch32
      genius index --fit -o my.genius
      genius index vectors.npy --ids ids.txt -o own.genius
      genius index rows.parquet --vector-column embedding -o own.genius
      genius index rows.parquet --ray ray://head:10001
    """
    from genius.cli.common import kept_if_interrupted, phases, sources_here
    from genius.index import Index
    from genius.index.folder import read_about
    from genius.index.ingest import Indexed, IngestConfig, ingest
    from genius.index.metadata import TableColumns
    from genius.types import Modality

    if not paths and not (fit or refit):
        raise GeniusError("give files or folders to index")
    paths = sources_here(paths or [], output)
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:  # before a model is loaded
        raise GeniusError(f"no such file or folder: {missing}")
    if watch and (refit or as_json or not paths):
        raise GeniusError("--watch runs until Ctrl-C: use it with files or folders, without --refit and --json")
    if model is not None and encoder is not None:
        raise GeniusError("use either --encoder (fits codes for an encoder) or --model (an existing model), not both")
    if ray is not None and (encoder is not None or fit or refit or watch):
        raise GeniusError(
            "--ray cannot be used with --encoder, --refit or --watch: create the index from a sample, then add to it with --ray"
        )
    if codes_only and ray is not None:
        raise GeniusError("--codes-only creates an index: create it from a sample without --ray, then add to it with --ray")
    config = IngestConfig(
        columns=TableColumns(id_column, text_column, image_column, vector_column),
        captions=not no_captions,
        by_content=content,
        prune=prune,
        outside=outside,
        batch_size=batch,
        undelete=undelete,
        as_text=tuple(as_text or ()),
        exif=exif,
    )
    vectors = not codes_only
    place = _place(device)
    own = _own_vectors(paths, vector_column, ids)
    if own and (ray is not None or encoder is not None or model is not None or watch or prune):
        raise GeniusError("your own vectors need no model: leave out --model, --encoder, --ray, --watch and --prune")
    if own and codes_only:
        raise GeniusError("an index of your own vectors stores them: leave out --codes-only")
    if query_vectors is not None and not (own or refit):
        raise GeniusError("--query-vectors is only for your own vectors (a .npy file, or --vector-column)")
    say = None if as_json else note
    new = read_about(output) is None
    if new and model is None:
        model = "bundled:mini"
    with phases() as tell, kept_if_interrupted():

        def on_progress(count: int) -> None:
            tell("indexing", count, 0)

        if not paths:
            done = _as_it_is(output)
        elif own:
            from genius.fit.vectors import index_tables, index_vectors

            fitting: dict[str, Any] = {"queries": query_vectors, "fit": fit, "say": say, "on_progress": on_progress}
            if paths[0].suffix == ".npy":
                done = index_vectors(paths[0], output, ids=ids, modality=Modality.parse(modality), **fitting)
            else:
                done = index_tables(paths, output, config, thumbnails=thumbnails, **fitting)
        elif ray is not None:
            from genius.scale.bulk import BulkConfig, bulk_index

            bulk = BulkConfig(ray, workers, thumbnails, device)
            done = bulk_index(paths, output, model, config, bulk, on_progress, note)
        elif encoder is not None:
            from genius.fit.folder import index_with_encoder

            done = index_with_encoder(
                paths, output, encoder, config, fit=fit, device=place, thumbnails=thumbnails, vectors=vectors, tell=tell, say=say
            )
            if done.hint is None and encoder.startswith("bundled:"):
                done.hint = f"{encoder} knows drawings; for photographs use a CLIP: --encoder hf-hub:openai/clip-vit-base-patch32"
        else:
            with Index(output, model, thumbnails=thumbnails, vectors=vectors) as opened:
                opened.model.to(place)
                report = ingest(opened, paths, config, on_progress)
                done = Indexed(report, opened.count(), hint=opened.advice())
    if (refit or (fit and not _is_fitted(output))) and done.fit is None:
        from genius.fit.folder import refit as fit_again
        from genius.fit.vectors import read_array

        queries = None if query_vectors is None else read_array(query_vectors, "query vectors")
        done = replace(done, fit=fit_again(output, say=say, queries=queries), hint=None, fitted=True)
    if as_json:
        emit({"index": str(output), **done.to_dict()})
    else:
        _print_report(done, output, new=new, read=bool(paths), pruned=prune)
    if watch:
        note(f"checking for changes every {watch:g} s; Ctrl-C ends it")
        for line in _changes(output, paths, config, watch, place):
            note(line)
    _exit_status(done)


def _place(device: str) -> Any:
    """Where the model runs; without torch, stored graphs run on the CPU."""
    from genius.encoders.base import find_device
    from genius.optional import has_torch

    if device in ("auto", "cpu") and not has_torch():
        return "cpu"
    return find_device(device)


def _is_fitted(output: Path) -> bool:
    """Whether the model of an index was fitted; one that is not its own was."""
    from genius.index.folder import INSIDE, about_of
    from genius.index.paths import MODEL
    from genius.model.known_items import load_knows

    if about_of(output).source != INSIDE:
        raise GeniusError(f"{output} was not made with --encoder or of vectors: there is nothing to fit")
    known = load_knows(output / MODEL)
    return known is not None and known.fitted


def _as_it_is(output: Path) -> Indexed:
    """An index that is to be fitted, without reading any file."""
    from genius.index.folder import about_of, open_store
    from genius.index.ingest import Indexed, IngestReport

    store = open_store(output, about_of(output))
    return Indexed(IngestReport(), store.at(store.latest()).count())


def _own_vectors(paths: list[Path], vector_column: str | None, ids: Path | None) -> bool:
    """Whether vectors are indexed: one .npy file, or tables with a column of them."""
    arrays = [path for path in paths if path.suffix == ".npy"]
    if arrays and len(paths) > 1:
        raise GeniusError("index one .npy file of vectors at a time")
    if ids is not None and not arrays:
        raise GeniusError("--ids is for a .npy file of vectors; for tables use --id-column")
    return bool(arrays) or vector_column is not None


def _counts(report: IngestReport, pruned: bool) -> str:
    """What a run did with the files, in one line."""
    counts = [f"{report.added} added", f"{report.replaced} replaced", f"{report.unchanged} unchanged"]
    if pruned:
        counts.append(f"{report.deleted} deleted")
    counts.append(f"{report.problems.total} skipped in {report.seconds:.1f} s")
    if report.added + report.replaced:
        counts.append(f"{report.to_dict()['items_per_second']:,.1f} items/s")
    return ", ".join(counts)


def _print_report(done: Indexed, output: Path, *, new: bool, read: bool, pruned: bool) -> None:
    from genius.errors import KEPT
    from genius.index.paths import MODEL
    from genius.model.config import read_model_config
    from genius.pictures import HEIF_HINT, HEIF_SUFFIXES

    report = done.report
    if read:
        note(_counts(report, pruned))
    for line in report.problems[:SHOWN]:
        note(f"  skipped {line}")
    if report.problems.total > SHOWN:
        note(f"  ... and {report.problems.total - SHOWN} more (--json lists the first {KEPT:,})")
    if report.ignored:
        suffixes = ", ".join(f"{suffix} ({count})" for suffix, count in report.ignored.most_common(8))
        note(f"  not indexable: {suffixes}")
        if any(suffix in HEIF_SUFFIXES for suffix in report.ignored):
            note(f"  {HEIF_HINT}")
    if report.gone:
        note(f"  {counted(report.gone, 'item')} whose file or row is gone: --prune deletes them")
    if report.left_deleted:
        note(f"  {counted(report.left_deleted, 'item')} deleted earlier and left out: --undelete brings them back")
    print(f"{output}: {counted(done.items, 'item')}")
    if done.hint is not None:
        note(f"note: {done.hint}")
    if done.fit is not None:
        for line in done.fit.lines():
            print(f"  {line}")
    elif not read:
        print("  its codes and decoder are fitted already: --refit fits new ones")
    if new and not done.fitted:
        print("  a search compares all of them, so nothing had to be fitted")
    if done.fit is not None or (new and not done.fitted):
        example = '"what you look for"'
        if read_model_config(output / MODEL).encoder is None:
            example = "--vector query.npy"
        print(f"next: genius search {output} {example}")


def _changes(output: Path, paths: list[Path], config: IngestConfig, every: float, where: Any) -> Iterator[str]:
    """Index repeatedly; yield a line for each run that changed something."""
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


def _exit_status(done: Indexed) -> None:
    """Exit status 1 if something was skipped. Everything else is in the index; the same command tries again."""
    skipped = done.report.problems.total
    if skipped:
        note(f"{counted(skipped, 'entry')} skipped: correct what is named above and run the same command again")
        raise typer.Exit(1)


@command
def info(
    path: IndexArgument,
    versions: Annotated[bool, typer.Option("--versions", help="List the versions that can be opened.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what an index holds: items by modality, metadata fields for --where, model, size."""
    from genius.index.folder import INSIDE, about_of, describe_index, open_store
    from genius.index.paths import MODEL
    from genius.model.known_items import load_knows

    about = about_of(path)
    store = open_store(path, about)
    body = describe_index(path, about, store.at(store.latest()))
    if versions:
        body["versions"] = store.versions()
    body["advice"] = _advice(path)
    if as_json:
        emit(body)
        return
    modalities = ", ".join(f"{count:,} {modality}" for modality, count in body["modalities"].items() if count)
    items = f"{counted(body['items'], 'item')} ({modalities or 'empty'})"
    print(f"{path}: {items}, {body['bytes'] / 1e6:,.1f} MB, version {body['version']}")
    source = body["model"] or "not recorded"
    if source == INSIDE:
        source = _own_model(load_knows(path / MODEL))
    print(f"  model     {source} ({body['fingerprint'][:8]})")
    stored = f"embeddings of {body['width']}"
    if not body["vectors"]:
        stored = "no embeddings are stored, items are ranked by codes"
    print(f"  IDs       {len(body['levels'])} codes of {' x '.join(map(str, body['levels']))}; {stored}")
    if body["learned"] is not None:
        known = body["learned"]
        shown = ", ".join(f"{one['query']} -> {one['target']} x {one['weight']:.2f}" for one in known["directions"])
        print(f"  learned   from {known['queries']:,} queries at version {known['version']}: {shown}")
    if body["advice"] is not None:
        print(f"  note      {body['advice']}")
    for name, data_type in body["metadata"].items():
        print(f"  metadata  {without_controls(name)} ({data_type})")
    for version in body.get("versions", []):
        print(f"  version   {version['version']}  {version['time'][:19]}  {counted(version['items'], 'item')}")


def _own_model(known: Knows | None) -> str:
    """What an index says of a model in its own folder."""
    encoder = "?"
    if known is not None:
        encoder = known.fit.get("encoder", "?")
    if known is not None and not known.fitted:
        return f"the encoder {encoder}; nothing fitted yet, all items are compared"
    return f"fitted to this collection, over {encoder}"


def _advice(path: Path) -> str | None:
    """Advice about the index, if its model can be loaded."""
    from genius.index import Index

    try:
        with Index.open(path, read_only=True) as opened:
            return opened.advice()
    except GeniusError:
        return None


@command
def delete(
    path: IndexArgument,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of the items to delete.", metavar="ID")] = None,
    where: Annotated[str | None, typer.Option(help="Delete all items that match this SQL condition.")] = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete items by id, or all items that match a condition.

    Examples:
      genius delete my.genius photos/a.jpg
      genius delete my.genius --where "year < 2010"
    """
    from genius.index import Index

    if bool(ids) == (where is not None):
        raise GeniusError("give ids to delete, or a condition with --where")
    with Index.open(path, model) as opened:
        if ids:
            deleted = opened.delete(ids, missing="raise")
        else:
            deleted = opened.delete([item.id for item in opened.items(where)], missing="skip")
        left = opened.count()
    tell({"deleted": deleted, "items": left}, f"{deleted} deleted, {left} left", as_json)


@command
def optimize(
    path: IndexArgument,
    keep_days: Annotated[float, typer.Option(metavar="N", min=0, help="Remove versions older than this many days.")] = 7.0,
    words: Annotated[bool, typer.Option("--words", help="Build the full-text index for search --mode words and hybrid.")] = False,
    words_field: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With --words: metadata field to include. Repeatable.")
    ] = None,
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge small files, remove old versions, and rebuild the cache. Safe while others search.

    Examples:
      genius optimize my.genius
      genius optimize shop.genius --words --words-field sku
    """
    from datetime import timedelta

    from genius.index import Index

    with Index.open(path, model) as opened:
        before = opened.info()["bytes"]
        if words or words_field:
            opened.index_words(words_field or [])
        opened.optimize(keep=timedelta(days=keep_days))
        after = opened.info()["bytes"]
    tell({"bytes_before": before, "bytes_after": after}, f"{before / 1e6:,.1f} MB -> {after / 1e6:,.1f} MB", as_json)


def _as_json(shown: DemoResult) -> dict[str, Any]:
    hits = [{"id": h.id, "score": h.score, "codes": list(h.codes), "name": h.item.metadata.get("name")} for h in shown.hits]
    return {"task": shown.title, "text": shown.query.text, "hits": hits}


@command
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Index folder to create.")] = Path("demo.genius"),
    model: Annotated[str, typer.Option(help="Model folder or URI.")] = "bundled:mini",
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Index about this many items. 0: all.")] = 0,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Index and search about 11,600 drawings, without any download.

    A second run re-uses the index.
    """
    from genius.cli.common import phases
    from genius.demo import demo_items, run_showcase
    from genius.index import Index
    from genius.model.genius import Genius

    collection = demo_items()
    items = collection
    if limit:
        items = collection[:: max(1, len(collection) // limit)]
    index = Index(output, Genius.from_pretrained(model, device=device))
    if index.count() < len(items):
        with phases() as tell:
            index.add(items, on_progress=lambda report: tell("indexing", report.added + report.existing, len(items)))
    shown = run_showcase(index, collection)
    if as_json:
        emit({"index": str(output), "items": index.count(), "searches": [_as_json(s) for s in shown]})
        return
    for s in shown:
        parts = []
        if s.query.image is not None:
            parts.append(f"[{Path(str(s.query.image)).stem}]")
        if s.query.text:
            parts.append(s.query.text)
        print(f"\n{s.title}:  {' + '.join(parts)}")
        for hit in s.hits[:5]:
            print(f"  {hit.score:6.3f}  {'-'.join(map(str, hit.codes)):<28}  {hit.item.metadata.get('name', hit.id)}")
    print(f"\n{output} holds {counted(index.count(), 'item')}. Next:")
    print(f'  genius search {output} --text "a sad face" --target image')
    print(f"  genius explain {output} --text umbrella        # how the ID is generated, code by code")
    print(f"  genius serve {output}                          # a page: open http://127.0.0.1:8000")
    print(f"  genius export web {output} -o tab/             # the search in a browser tab (needs genius-search[export]),")
    print("  python -m http.server -d tab 8001              # ... then open http://localhost:8001")
    print("  genius index YOUR-FOLDER -o my.genius          # your own pictures and texts")
