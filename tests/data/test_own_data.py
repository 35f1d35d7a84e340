"""Own data: files of pairs, a folder of captioned images, Karpathy splits; bad lines are counted and named."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from genius.data import CaptionedImages, Pairs, open_collection
from genius.data.collection import check_collection
from genius.errors import GeniusError
from genius.types import Modality

ROWS: list[dict[str, Any]] = [
    {"query_text": "a red ball", "image": "a.png", "id": "A"},
    {"query_text": "a red ball", "image": "b.png", "id": "B"},  # a second positive of the same query
    {"query_image": "a.png", "text": "a ball that is red"},
    {"query_image": "a.png", "query_text": "in blue", "image": "b.png", "id": "B", "instruction": "Change it."},
    {"query_text": "what is a ball?", "text": "A ball is round.", "image": "a.png", "target": "pair", "dataset": "wiki"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, colour in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{name}.png")
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        names = sorted({key for row in rows for key in row})
        with path.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, names)
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = sorted({key for row in rows for key in row})
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_pairs_in_every_format(folder: Path, suffix: str) -> None:
    data = open_collection(write(folder / f"mine{suffix}", ROWS))
    assert isinstance(data, Pairs)
    assert [task.key for task in data.tasks] == [
        "mine_text_to_image",
        "mine_image_to_text",
        "mine_pair_to_image",
        "wiki_text_to_pair",
    ]
    queries = list(data.queries())
    assert queries[0].positives == ("A", "B") and len(queries) == 4
    assert queries[2].query.instruction == "Change it." and queries[0].query.instruction
    assert check_collection(data).items == 4
    assert list(data.local_pool(0) or ()) == ["A", "B"]


def test_bad_pairs_are_counted_and_named(folder: Path) -> None:
    bad = [
        {"query_text": "x"},  # no item
        {"text": "y"},  # no query
        {"query_text": "x", "image": "a.png", "colour": "red"},
        {"query_text": "x", "image": "a.png", "target": "text"},
    ]
    for row, words in zip(
        bad, ("neither an image nor a text", "needs a text", "unknown column 'colour'", "the target is text"), strict=True
    ):
        with pytest.raises(GeniusError, match=f"1 lines cannot be used.*line 2.*{words}"):
            Pairs(write(folder / "bad.jsonl", [ROWS[0], row]))
    with pytest.raises(GeniusError, match="holds no pairs"):
        Pairs(write(folder / "empty.jsonl", []))
    with pytest.raises(GeniusError, match="different contents"):
        Pairs(write(folder / "twice.jsonl", [ROWS[0], {**ROWS[0], "image": "b.png"}]))
    with pytest.raises(GeniusError, match="1 candidates' images are missing"):
        check_collection(Pairs(write(folder / "gone.jsonl", [{"query_text": "x", "image": "gone.png"}])))
    (folder / "data.xls").write_text("")
    with pytest.raises(GeniusError, match="no file of pairs"):
        Pairs(folder / "data.xls")


def test_image_folder_with_captions(folder: Path) -> None:
    with pytest.raises(GeniusError, match="has no captions"):
        open_collection(folder)
    (folder / "a.txt").write_text("a red square\nred\n")
    (folder / "b.txt").write_text("a blue square\n")
    data = open_collection(folder)
    assert isinstance(data, CaptionedImages)
    summary = check_collection(data)
    assert summary.queries == 5 and summary.items == 5 and summary.pairs == 6
    write(folder / "metadata.jsonl", [{"file_name": "a.png", "text": "rouge"}])
    assert [q.query.text for q in open_collection(folder).queries()] == ["rouge", None]


def test_karpathy_splits(tmp_path: Path) -> None:
    images = []
    for number, split in enumerate(["train", "restval", "test", "test"]):
        name = f"COCO_{number}.jpg"
        (tmp_path / "val2014").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "val2014" / name)
        sentences = [{"raw": f"caption {i} of {number}"} for i in range(5)]
        images.append({"filepath": "val2014", "filename": name, "imgid": number, "split": split, "sentences": sentences})
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"dataset": "coco", "images": images}))
    data = open_collection(tmp_path)
    assert isinstance(data, CaptionedImages) and [t.title for t in data.tasks] == ["COCO text->image", "COCO image->text"]
    summary = check_collection(data)
    assert (summary.queries, summary.items, summary.pairs) == (12, 12, 20)
    assert check_collection(open_collection(f"coco:{tmp_path}", split="train")).queries == 12
    first = next(data.queries())
    assert first.positives == ("coco:i2",) and data.tasks[0].target == Modality.IMAGE
    with pytest.raises(GeniusError, match="no images of split 'val'"):
        open_collection(tmp_path, split="val")
