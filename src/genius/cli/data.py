"""Data in and out: check a dataset (`genius data check`), extract features (`genius features extract`), convert published
checkpoints (`genius convert official`), export models and indexes (`genius export`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from genius.cli.common import add_group, command, console, emit, feature_progress, tell
from genius.cli.index import IndexArgument, JsonOption, ModelOption
from genius.errors import GeniusError, counted


def register(app: typer.Typer) -> None:
    add_group(app, "convert", "Convert published checkpoints into GENIUS models.", official)
    add_group(
        app, "export", "Export a model as ONNX files, or an index as a page that searches in the browser.", onnx, graphs, web
    )
    add_group(app, "features", "Extract the features of a dataset.", extract)
    add_group(app, "data", "Check a dataset.", check)


@command
def official(
    quantizer: Annotated[Path, typer.Option(help="Published quantizer checkpoint, such as rq_clip_large.pth.")],
    generator: Annotated[Path, typer.Option(help="Published generator checkpoint, such as GENIUS_t5small.pth.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the model to.")],
    encoder: Annotated[str, typer.Option(help="Encoder to store with the model, such as uniir:clip_sf_large.pth.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Convert the published GENIUS checkpoints. No code in the files is executed.

    Without --encoder the model works on pre-extracted features (`genius eval`, `genius train`). `genius attach` adds an
    encoder later.

    Example:
      genius convert official --quantizer rq_clip_large.pth \\
        --generator GENIUS_t5small.pth -o MODEL
    """
    from genius.model.official import convert_official

    model = convert_official(quantizer, generator)
    model.save_pretrained(output)
    if encoder:
        from genius.train.sources import attach_encoder

        attach_encoder(output, encoder)
    config = model.config
    levels = list(config.quantizer.level_sizes)
    body = {"output": str(output), "fingerprint": model.fingerprint(), "width": config.width, "levels": levels}
    tell(body, f"wrote {output}: width {config.width}, levels {' x '.join(map(str, levels))}", as_json)


@command
def onnx(
    model: Annotated[str, typer.Argument(help="Model folder or URI, such as bundled:mini.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the files to.")],
    as_json: JsonOption = False,
) -> None:
    """Export a model as ONNX files: text encoder, image encoder, fusion, first and later steps of the decoder.

    Example:
      genius export onnx bundled:mini -o parts/
    """
    from genius.export import export_onnx
    from genius.model.genius import Genius

    sizes = export_onnx(Genius.from_pretrained(model), output)
    _tell_files(output, sizes, as_json)


@command
def graphs(
    model: Annotated[str, typer.Argument(help="Model folder, or an index that contains a model.")],
    as_json: JsonOption = False,
) -> None:
    """Store ONNX graphs in a model folder, so that the model runs without torch.

    The graphs hold no weights; they read the weight files of the folder. `genius search` then starts in about half a second.

    Example:
      genius export graphs my-model/
    """
    from genius.export.stored import store_graphs
    from genius.index.paths import MODEL

    folder = Path(model)
    if (folder / MODEL / "config.json").is_file():
        folder = folder / MODEL
    sizes = store_graphs(folder)
    _tell_files(folder, sizes, as_json)


def _tell_files(folder: Path, sizes: Mapping[str, int], as_json: bool) -> None:
    lines = [f"{size / 1e6:8.2f} MB  {folder / name}" for name, size in sizes.items()]
    tell({"output": str(folder), "files": sizes}, "\n".join(lines), as_json)


@command
def web(
    path: IndexArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write. Any static file server can host it.")],
    vectors: Annotated[
        bool, typer.Option("--vectors", help="Include vectors (2 bytes per dimension): same results as genius search.")
    ] = False,
    title: Annotated[str, typer.Option(help="Title of the page. Default: the index's name.")] = "",
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export an index as a static page that searches in the browser. No query leaves the tab.

    Example:
      genius export web my.genius -o site/ && python -m http.server -d site
    """
    from genius.export.web import export_web
    from genius.index import Index

    def on_step(what: str) -> None:
        if not as_json:
            console.print(f"exporting {what}")

    with Index.open(path, model) as index:
        done = export_web(index, output, vectors=vectors, title=title, on_step=on_step)
    if as_json:
        emit({"output": str(output), "items": done.items, "pictures": done.pictures, "bytes": done.bytes, "files": done.files})
        return
    held = f"{counted(done.items, 'item')}, {counted(done.pictures, 'picture')}, {done.bytes / 1e6:.1f} MB"
    print(f"{held} in {output}. Open it with:")
    print(f"  python -m http.server -d {output} 8000        # then http://localhost:8000")


@command
def check(
    dataset: Annotated[str, typer.Argument(help="mbeir:DIR, coco:DIR, flickr30k:DIR, pairs:FILE, images:DIR, or a path.")],
    pictures: Annotated[
        str, typer.Option(help="there: check that every image file exists. none: do not check images.")
    ] = "there",
    split: Annotated[str, typer.Option(help="Only this split. Default: test; for M-BEIR, every split that exists.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Check that a dataset is complete and readable. Exit status 2 if something is missing or broken.

    Example:
      genius data check mbeir:M-BEIR
    """
    from genius.data import open_collection, scheme_of
    from genius.data.collection import check_collection
    from genius.data.mbeir import splits_there

    if pictures not in ("none", "there"):
        raise GeniusError("--pictures is none or there")
    scheme, path = scheme_of(dataset)
    splits = [split or "test"]
    if scheme == "mbeir" and not split:
        splits = splits_there(Path(path))
    summaries: dict[str, object] = {}
    problems = []
    for name in splits:
        try:
            found = check_collection(open_collection(dataset, split=name), images=pictures != "none")
        except GeniusError as error:
            problems.append(f"{name}: {error}")
            continue
        counts = {"queries": found.queries, "items": found.items, "pairs": found.pairs, "tasks": found.per_task}
        summaries[name] = counts
        if not as_json:
            shown = (counted(found.queries, "query"), counted(found.items, "item"), counted(found.pairs, "pair"))
            print(f"{dataset}, {name}: {', '.join(shown)}; complete")
    if as_json:
        emit({"sound": not problems, "splits": summaries, "problems": problems})
    if problems:
        raise GeniusError("; ".join(problems))


@command
def extract(
    encoder: Annotated[str, typer.Argument(help="Encoder or model: a folder, hf-hub:OWNER/NAME, uniir:FILE or bundled:NAME.")],
    dataset: Annotated[str, typer.Argument(help="mbeir:DIR, coco:DIR, flickr30k:DIR, pairs:FILE, images:DIR, or a path.")],
    output: Annotated[Path, typer.Argument(help="Folder for the features.")],
    split: Annotated[str, typer.Option(help="train, union_train (M-BEIR, up-sampled), val or test.")] = "test",
    device: Annotated[
        str, typer.Option(help="Where the encoder runs: auto, cpu, cuda, cuda:1. auto with --shard i/n: one GPU per process.")
    ] = "auto",
    precision: Annotated[str, typer.Option(help="Precision of the encoder: fp32, bf16 or fp16.")] = "fp32",
    shard: Annotated[
        str, typer.Option(help="i/n: this is process i of n that share the work. They may run on several machines.")
    ] = "1/1",
    workers: Annotated[int, typer.Option(metavar="N", min=0, help="Processes that decode images. 0: threads.")] = 0,
    tasks: Annotated[str, typer.Option(help="Only these tasks of M-BEIR, such as mscoco_task0,cirr_task7.")] = "",
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Images or texts per encoder call.")] = 64,
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="Rows per output file. A killed run loses at most one unfinished file.")
    ] = 4096,
    full: Annotated[bool, typer.Option("--fp32", help="Store vectors in 32 bits instead of 16.")] = False,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Skip items whose image cannot be read, and list them.")
    ] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not check ids and images beforehand.")] = False,
    seed: Annotated[int, typer.Option(help="Random seed of the choice among M-BEIR's four prompts.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Extract the features of a dataset's queries and candidates. A run that was stopped continues.

    All ids and images are checked before anything is encoded (see --no-check).

    Example:
      genius features extract bundled:mini mbeir:M-BEIR features/ --workers 8
    """
    from genius.data import open_collection
    from genius.data.extract import ExtractConfig, modality_counts
    from genius.data.extract import extract as run
    from genius.encoders import load_encoder

    if precision not in ("fp32", "bf16", "fp16"):
        raise GeniusError("--precision must be fp32, bf16 or fp16")
    rank, world = _share(shard)
    config = ExtractConfig(
        batch_size=batch,
        shard_rows=rows,
        half=not full,
        on_error="skip" if skip_broken else "raise",
        check=not no_check,
        rank=rank,
        world=world,
        precision=precision,  # type: ignore[arg-type]
        workers=workers,
    )
    chosen = tuple(name.strip() for name in tasks.split(",") if name.strip()) or None
    collection = open_collection(dataset, split=split, seed=seed, tasks=chosen)
    with feature_progress() as progress:
        data = run(load_encoder(encoder, device, rank), collection, output, config, progress)
    if data is None:
        console.print(f"this process is done; other processes still work on {output}", highlight=False)
        if as_json:
            emit({"output": str(output), "complete": False})
        return
    report = {
        "output": str(output),
        "complete": True,
        "queries": len(data.queries),
        "candidates": modality_counts(data.pool),
        "pairs": len(data.pairs),
    }
    counts = ", ".join(counted(n, name) for name, n in modality_counts(data.pool).items() if n)
    tell(report, f"{output}: {counted(len(data.queries), 'query')}, {counts}, {counted(len(data.pairs), 'judgement')}", as_json)


def _share(text: str) -> tuple[int, int]:
    """Parse "2/4" as (1, 4): the number of this process from 0, and the number of processes."""
    first, _, all_ = text.partition("/")
    if not (first.isdecimal() and all_.isdecimal() and 1 <= int(first) <= int(all_)):
        raise GeniusError(f"--shard {text}: give i/n with i from 1 to n, as 2/4")
    return int(first) - 1, int(all_)
