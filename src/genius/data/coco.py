"""COCO and Flickr30K in Karpathy's splits: `dataset_coco.json` or `dataset_flickr30k.json` beside the images.

Two tasks: caption -> image and image -> captions (five of them). Only paths are read here, never pictures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genius.data.collection import JudgedQuery, Task, files_fingerprint
from genius.errors import GeniusError
from genius.files import parse_json
from genius.instructions import instruction_for
from genius.types import Item, Modality, Query

TITLES = {"coco": "COCO", "flickr30k": "Flickr30K"}
TRAIN = {"train", "restval"}  # Karpathy's extra validation images are trained on, as everywhere


class Karpathy:
    """One split. Images are `ROOT/filepath/filename` (COCO) or below `ROOT/images`, `ROOT/flickr30k-images` or ROOT."""

    def __init__(self, root: str | Path, *, split: str = "test") -> None:
        root = Path(root)
        self._file = root if root.is_file() else self._find(root)
        self.root = self._file.parent
        try:
            body = parse_json(self._file.read_bytes())
            images, dataset = body["images"], str(body.get("dataset", "coco"))
        except (ValueError, KeyError, TypeError):
            raise GeniusError(f"{self._file} is not a Karpathy split file") from None
        wanted = TRAIN if split == "train" else {split}
        self._images: list[dict[str, Any]] = [image for image in images if image.get("split") in wanted]
        if not self._images:
            raise GeniusError(f"{self._file} has no images of split {split!r}")
        self.split, self.name = split, dataset
        title = TITLES.get(dataset, dataset)
        self.tasks: tuple[Task, ...] = (
            Task(f"{dataset}_text_to_image", title, Modality.TEXT, Modality.IMAGE),
            Task(f"{dataset}_image_to_text", title, Modality.IMAGE, Modality.TEXT),
        )

    @staticmethod
    def _find(root: Path) -> Path:
        found = sorted(root.glob("dataset_*.json"))
        if not found:
            raise GeniusError(f"no Karpathy split file (dataset_coco.json, dataset_flickr30k.json) in {root}")
        return found[0]

    def _path(self, image: dict[str, Any]) -> str:
        name = str(image["filename"])
        if image.get("filepath"):
            return str(self.root / str(image["filepath"]) / name)
        for folder in ("images", "flickr30k-images", "."):
            if (self.root / folder / name).is_file():
                return str(self.root / folder / name)
        return str(self.root / name)

    def _captions(self, image: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for number, sentence in enumerate(image["sentences"]):
            yield f"{self.name}:t{image['imgid']}.{number}", str(sentence["raw"])

    def queries(self) -> Iterator[JudgedQuery]:
        to_image, to_text = (instruction_for(task.query, task.target) for task in self.tasks)
        for image in self._images:
            picture = f"{self.name}:i{image['imgid']}"
            for name, caption in self._captions(image):
                yield JudgedQuery(f"q-{name}", Query(text=caption, instruction=to_image), (picture,), 0)
            texts = tuple(name for name, _ in self._captions(image))
            yield JudgedQuery(f"q-{picture}", Query(image=self._path(image), instruction=to_text), texts, 1)

    def pool(self) -> Iterator[Item]:
        for image in self._images:
            yield Item(f"{self.name}:i{image['imgid']}", image=self._path(image))
            for name, caption in self._captions(image):
                yield Item(name, text=caption)

    def local_pool(self, task: int) -> Iterator[str]:
        for image in self._images:
            if task == 0:
                yield f"{self.name}:i{image['imgid']}"
            else:
                yield from (name for name, _ in self._captions(image))

    def fingerprint(self) -> str:
        return files_fingerprint([self._file], self.split)
