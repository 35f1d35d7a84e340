"""Files appear whole or not at all: what a failed write, a power cut and a second thread leave."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from genius import weight_arrays, weight_files
from genius.errors import GeniusError
from genius.files import disk_errors, read_json, write_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_whole(path, lambda target: target.write_text("old"))

    def fail(target: Path) -> None:
        target.write_text("ha")
        raise OSError(28, "No space left on device")

    with pytest.raises(GeniusError, match=r"cannot write .*file: the disk is full"):
        write_whole(path, fail)
    assert path.read_text() == "old" and [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("durable", [False, True])
def test_durable_bytes_are_on_the_disk_before_the_name(durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flushed = tmp_path / "file", []

    def fsync(handle: int) -> None:
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        assert path.exists() == folder  # the bytes before the name, then the name
        flushed.append(b"the folder" if folder else os.pread(handle, 100, 0))

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(path, lambda target: target.write_text("whole"), durable=durable)
    assert flushed == ([b"whole", b"the folder"] if durable else []) and path.read_text() == "whole"


@pytest.mark.parametrize("text", ["{", "[" * 200_000, '{"a": 1}' + " " * 100, "\ud800", "nul"])
def test_json_of_a_stranger_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(GeniusError, match=r"cannot read .*a\.json") as caught:
        read_json(path, 200_000 if len(text) == 200_000 else 50)
    assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "no.json")


def test_two_threads_do_not_write_into_each_others_file(tmp_path: Path) -> None:
    path, both = tmp_path / "file", threading.Barrier(2, timeout=20)
    texts = ("a" * 1000, "b" * 500)
    written: list[str] = []

    def fill(target: Path, text: str) -> None:
        both.wait()
        target.write_text(text)
        both.wait()
        written.append(target.read_text())

    threads = [threading.Thread(target=write_whole, args=(path, lambda t, text=text: fill(t, text))) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(written) == sorted(texts) and path.read_text() in texts
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_weights_that_cannot_be_mapped_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.zeros(2)}, path)

    def full(*_: object, **__: object) -> object:
        raise MemoryError("Cannot allocate memory (os error 12)")

    monkeypatch.setattr(weight_arrays, "safe_open", full)
    for read in (weight_files.read_shapes, weight_files.read_tensors):
        with pytest.raises(GeniusError, match=r"cannot read the weights .*Cannot allocate memory"):
            read(path)


@pytest.mark.parametrize("done", [True, False])
def test_a_rename_that_reports_an_error(done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network file systems report errors of renames that they did."""
    path = tmp_path / "file"
    path.write_text("old")
    replace = Path.replace

    def failing(source: Path, target: Path) -> None:
        if done:
            replace(source, target)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "replace", failing)
    if done:
        write_whole(path, lambda target: target.write_text("new"))
    else:
        with pytest.raises(GeniusError, match="Input/output error"):
            write_whole(path, lambda target: target.write_text("new"))
    with pytest.raises(GeniusError, match="cannot write"):
        monkeypatch.undo()
        write_whole(path, lambda target: None)  # nothing was written
    assert path.read_text() == ("new" if done else "old")
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


def test_an_error_of_the_disk_is_one_line_and_others_pass() -> None:
    said = r"^cannot write a: No space left on device; it is as it was$"
    with pytest.raises(GeniusError, match=said), disk_errors("cannot write a", "; it is as it was"):
        raise OSError(28, "No space left on device")
    with pytest.raises(GeniusError, match=r"^another line$"), disk_errors("cannot write a"):
        raise GeniusError("another line")
    with pytest.raises(KeyError), disk_errors("cannot write a"):
        raise KeyError("a")
