"""Datasets by name: `open_collection` opens `mbeir:DIR`, `coco:DIR`, `flickr30k:DIR`, `pairs:FILE`, `images:DIR` or a path.

`genius.data.extract.extract` turns a collection and an encoder into a `FeatureSet` (`genius.data.features`), which is all
that training and evaluation read. Your own data is a file of pairs (JSONL, CSV, Parquet) or a folder of captioned
images. A pair is a query and one of its positives, one line each. Columns (any may be absent, paths are relative to the
file):

    query_text, query_image, instruction, target      the query
    text, image, id                                   the item; without `id`, equal content is one item
    query_id, dataset                                 optional: several lines may judge one query; names of result rows

A folder of images takes captions from `metadata.csv` or `metadata.jsonl` (`file_name`, `text`), or from a `.txt` next to
each image, and has two tasks: caption -> image and image -> caption. COCO and Flickr30K are read in Karpathy's splits
(`dataset_coco.json` or `dataset_flickr30k.json` next to the images), as the same two tasks.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genius.data.collection import Collection, JudgedQuery, ProblemCounter, Task, files_fingerprint
from genius.data.mbeir import MBeir
from genius.data.readers import TABLE_SUFFIXES, Row, csv_rows, read_rows
from genius.errors import GeniusError
from genius.files import parse_json, reading
from genius.types import IMAGE_SUFFIXES, Item, Modality, Query, instruction_for

COLUMNS = {"query_text", "query_image", "instruction", "target", "text", "image", "id", "query_id", "dataset"}
TITLES = {"coco": "COCO", "flickr30k": "Flickr30K"}
TRAIN = {"train", "restval"}  # Karpathy's extra validation images are trained on, as everywhere

SCHEMES = ("mbeir", "coco", "flickr30k", "pairs", "images")


def read_pairs(path: Path) -> Iterator[tuple[int, Row | str]]:
    """(line, row) of a .jsonl, .csv, .tsv or .parquet file, one at a time; a text in place of a row that cannot be read.

    Args:
        path: The file.
    """
    suffix = path.suffix.lower()
    if not path.is_file():
        raise GeniusError(f"no such file: {path}")
    if suffix not in TABLE_SUFFIXES:
        raise GeniusError(f"{path} is no file of pairs: use .jsonl, .csv, .tsv or .parquet")
    with reading(path, csv.Error):
        if suffix in (".csv", ".tsv"):
            yield from csv_rows(path)
        else:
            yield from read_rows(path)


class Pairs:
    """A file of pairs as a collection. It is read once: ids, texts and image paths stay in memory, images do not.

    Args:
        path: A .jsonl, .csv, .tsv or .parquet file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.stem
        self._items: dict[str, Item] = {}
        self._queries: dict[str, Query] = {}
        self._positives: dict[str, dict[str, None]] = {}
        self._task_of: dict[str, int] = {}
        self._own: list[dict[str, None]] = []  # of each task: the ids of its candidates
        tasks: dict[tuple[str, Modality, Modality], int] = {}
        problems = ProblemCounter()
        for number, row in read_pairs(self.path):
            try:
                if isinstance(row, str):
                    raise GeniusError(row)
                self._add(row, tasks)
            except GeniusError as error:
                problems.add("lines cannot be used", f"line {number}: {error}")
        problems.raise_if_any(str(self.path))
        if not self._queries:
            raise GeniusError(f"{self.path} holds no pairs")
        self.tasks: tuple[Task, ...] = tuple(
            Task(f"{dataset}_{query.label}_to_{target.label}", dataset, query, target) for dataset, query, target in tasks
        )

    def _add(self, row: Mapping[str, Any], tasks: dict[tuple[str, Modality, Modality], int]) -> None:
        unknown = set(row) - COLUMNS
        if unknown:
            raise GeniusError(f"unknown column {sorted(map(str, unknown))[0]!r}; known: {', '.join(sorted(COLUMNS))}")
        image = self._image(row.get("image"))
        text = _text(row.get("text"))
        name = str(row.get("id") or "") or _digest(image, text)
        item = Item(name, image=image, text=text)
        known = self._items.setdefault(name, item)
        if (known.image, known.text) != (item.image, item.text):
            raise GeniusError(f"item {name!r} occurs with different contents")
        target = item.modality
        if row.get("target") and Modality.parse(row["target"]) != target:
            raise GeniusError(f"the target is {Modality.parse(row['target']).label}, but item {name!r} is {item.modality.label}")
        query_image = self._image(row.get("query_image"))
        query_text = _text(row.get("query_text"))
        modality = Query(text=query_text, image=query_image).modality
        instruction = _text(row.get("instruction")) or instruction_for(modality, target)
        query = Query(text=query_text, image=query_image, instruction=instruction)
        query_id = str(row.get("query_id") or "") or _digest(query_image, query_text, instruction)
        if self._queries.setdefault(query_id, query) != query:
            raise GeniusError(f"query {query_id!r} occurs with different contents")
        task = tasks.setdefault((_text(row.get("dataset")) or self.name, modality, target), len(tasks))
        if task == len(self._own):
            self._own.append({})
        if self._task_of.setdefault(query_id, task) != task:
            raise GeniusError(f"query {query_id!r} belongs to two tasks")
        self._own[task][name] = None
        self._positives.setdefault(query_id, {})[name] = None

    def _image(self, value: Any) -> str | bytes | None:
        if value is None or value == "":
            return None
        if isinstance(value, Mapping):  # the usual Parquet image column: {"bytes": …, "path": …}
            value = value.get("bytes") or value.get("path")
        if isinstance(value, bytes):
            return value
        return str(self.path.parent / str(value))

    def queries(self) -> Iterator[JudgedQuery]:
        for name, query in self._queries.items():
            yield JudgedQuery(name, query, tuple(self._positives[name]), self._task_of[name])

    def pool(self) -> Iterator[Item]:
        yield from self._items.values()

    def local_pool(self, task: int) -> Iterator[str] | None:
        """The ids of the candidates of one task.

        Args:
            task: Number of the task.
        """
        return iter(self._own[task])

    def fingerprint(self) -> str:
        return files_fingerprint([self.path])


@dataclass(frozen=True, slots=True)
class Captioned:
    """An image and its captions."""

    id: str
    path: str
    captions: tuple[tuple[str, str], ...]  # id and text of each


class CaptionedImages:
    """Images with captions, and the two tasks that follow: caption -> image and image -> caption.

    Args:
        name: Of the collection; tasks begin with it.
        title: Of its rows in tables.
        images: In a stable order.
        query_prefix: Before the id of what a query is made from.
        fingerprint: Of the files that were read.
    """

    def __init__(
        self, name: str, title: str, images: Sequence[Captioned], query_prefix: str, fingerprint: Callable[[], str]
    ) -> None:
        self.name = name
        self.tasks: tuple[Task, ...] = (
            Task(f"{name}_text_to_image", title, Modality.TEXT, Modality.IMAGE),
            Task(f"{name}_image_to_text", title, Modality.IMAGE, Modality.TEXT),
        )
        self._images = images
        self._prefix = query_prefix
        self._fingerprint = fingerprint

    def queries(self) -> Iterator[JudgedQuery]:
        to_image, to_text = (instruction_for(task.query, task.target) for task in self.tasks)
        for image in self._images:
            for name, text in image.captions:
                yield JudgedQuery(f"{self._prefix}{name}", Query(text=text, instruction=to_image), (image.id,), 0)
            names = tuple(name for name, _ in image.captions)
            yield JudgedQuery(f"{self._prefix}{image.id}", Query(image=image.path, instruction=to_text), names, 1)

    def pool(self) -> Iterator[Item]:
        for image in self._images:
            yield Item(image.id, image=image.path)
            for name, text in image.captions:
                yield Item(name, text=text)

    def local_pool(self, task: int) -> Iterator[str]:
        """The ids of the candidates of one task.

        Args:
            task: Number of the task: 0 looks for images, 1 for texts.
        """
        for image in self._images:
            if task == 0:
                yield image.id
            else:
                yield from (name for name, _ in image.captions)

    def fingerprint(self) -> str:
        return self._fingerprint()


def image_folder(root: Path) -> CaptionedImages:
    """A folder of images with captions.

    Args:
        root: The folder.
    """
    captions = _folder_captions(root)
    if not captions:
        raise GeniusError(f"{root} has no captions: add metadata.csv or .jsonl (file_name, text), or a .txt next to each image")
    images = [
        Captioned(path, str(root / path), tuple((f"{path}#{i}", text) for i, text in enumerate(texts)))
        for path, texts in sorted(captions.items())
    ]

    def fingerprint() -> str:
        return files_fingerprint([path for path in root.rglob("*") if path.is_file()])

    return CaptionedImages(root.name, root.name, images, "?", fingerprint)


def _folder_captions(root: Path) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for name in ("metadata.csv", "metadata.jsonl"):
        if (root / name).is_file():
            for number, row in read_pairs(root / name):
                if isinstance(row, str):
                    raise GeniusError(f"{root / name}:{number} is {row}")
                text = _text(row.get("text") or row.get("caption"))
                if row.get("file_name") and text:
                    out.setdefault(str(row["file_name"]), []).append(text)
            return out
    for path in sorted(root.rglob("*")):
        caption = path.with_suffix(".txt")
        if path.suffix.lower() in IMAGE_SUFFIXES and caption.is_file():
            lines = [line.strip() for line in caption.read_text(encoding="utf-8").splitlines()]
            texts = [line for line in lines if line]
            if texts:
                out[str(path.relative_to(root))] = texts
    return out


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).strip() or None


def _digest(*parts: object) -> str:
    digest = hashlib.sha256()
    for part in parts:
        if not isinstance(part, bytes):
            part = str(part).encode("utf-8", "surrogatepass")
        digest.update(part)
        digest.update(b"\x00")
    return digest.hexdigest()[:16]


def karpathy(root: Path, split: str) -> CaptionedImages:
    """One of Karpathy's splits. Images are `ROOT/filepath/filename` (COCO) or below `ROOT/images`, `ROOT/flickr30k-images` or
    ROOT.

    Args:
        root: Folder with `dataset_*.json` and the images.
        split: train, val or test.
    """
    file = root
    if not file.is_file():
        files = sorted(root.glob("dataset_*.json"))
        if not files:
            raise GeniusError(f"no Karpathy split file (dataset_coco.json, dataset_flickr30k.json) in {root}")
        file = files[0]
    try:
        body = parse_json(file.read_bytes())
        rows = body["images"]
        name = str(body.get("dataset", "coco"))
    except (ValueError, KeyError, TypeError):
        raise GeniusError(f"{file} is not a Karpathy split file") from None
    wanted = {split}
    if split == "train":
        wanted = TRAIN
    images = [_karpathy_image(file.parent, name, row) for row in rows if row.get("split") in wanted]
    if not images:
        raise GeniusError(f"{file} has no images of split {split!r}")
    return CaptionedImages(name, TITLES.get(name, name), images, "q-", lambda: files_fingerprint([file], split))


def _karpathy_image(root: Path, dataset: str, row: Mapping[str, Any]) -> Captioned:
    file_name = str(row["filename"])
    path = root / file_name
    if row.get("filepath"):
        path = root / str(row["filepath"]) / file_name
    else:
        for folder in ("images", "flickr30k-images"):
            if (root / folder / file_name).is_file():
                path = root / folder / file_name
                break
    sentences = enumerate(row["sentences"])
    captions = tuple((f"{dataset}:t{row['imgid']}.{number}", str(sentence["raw"])) for number, sentence in sentences)
    return Captioned(f"{dataset}:i{row['imgid']}", str(path), captions)


def open_collection(
    source: str | Path, *, split: str = "test", seed: int = 0, tasks: tuple[str, ...] | None = None
) -> Collection:
    """Open a dataset.

    Args:
        source: `mbeir:DIR`, `coco:DIR`, `flickr30k:DIR`, `pairs:FILE`, `images:DIR`, or a path that looks like one.
        split: Split of M-BEIR, COCO or Flickr30K.
        seed: Of the choice among M-BEIR's prompts.
        tasks: Only these tasks of M-BEIR's layout.

    Raises:
        GeniusError: If there is no such dataset, or it has no such split or task.
    """
    scheme, path = scheme_of(source)
    if scheme == "mbeir":
        return MBeir(path, split=split, seed=seed, tasks=tasks)
    if tasks:
        raise GeniusError("only a dataset in M-BEIR's layout has tasks to choose from")
    if scheme in ("coco", "flickr30k"):
        return karpathy(path, split)
    if scheme == "images":
        return image_folder(path)
    return Pairs(path)


def scheme_of(source: str | Path) -> tuple[str, Path]:
    """(scheme, path) of a dataset's name; without a scheme, the one that the path looks like.

    Args:
        source: `SCHEME:PATH`, or a path.
    """
    scheme, _, path = str(source).partition(":")
    if scheme in SCHEMES and path:
        return scheme, Path(path)
    return _guess(Path(source)), Path(source)


def _guess(path: Path) -> str:
    if path.is_file():
        return "pairs"
    if (path / "query").is_dir() and (path / "cand_pool").is_dir():
        return "mbeir"
    if path.is_dir() and any(path.glob("dataset_*.json")):
        return "coco"
    if path.is_dir():
        return "images"
    raise GeniusError(f"no dataset at {path}: give a folder, a file of pairs, or {', '.join(f'{s}:PATH' for s in SCHEMES)}")
