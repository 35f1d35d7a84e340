"""Extraction as it runs for days: processes that are killed, pictures decoded elsewhere, half precision, GPUs, full disks."""

from __future__ import annotations

import json
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from shapes_encoder import ShapesEncoder
from torch import Tensor, nn
from typer.testing import CliRunner

from genius.cli import app
from genius.data import extract as extract_module
from genius.data.extract import ExtractConfig, extract
from genius.data.features import FeatureSet
from genius.data.mbeir import MBeir
from genius.encoders import base, load_encoder
from genius.encoders.base import sent_to_workers
from genius.encoders.inputs import Pixels
from genius.errors import GeniusError
from lab.mbeir.shapes import write_synthetic_mbeir

HELPERS = Path(__file__).parents[1] / "helpers"
ROWS = ("mscoco_task0", "webqa_task2")
ENCODER = "bundled:mini"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_mbeir(tmp_path_factory.mktemp("machines") / "M", rows=ROWS, candidates=16, queries=6)


class Layer(nn.Module):
    """A small real network: it has weights, a device, and products that half precision changes."""

    width = 16

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pixels = Pixels(16)
        self.image, self.text = nn.Linear(3 * 16 * 16, 16), nn.Linear(64, 16)
        self.kinds: set[torch.dtype] = set()

    @torch.no_grad()
    def encode_images(self, images: Sequence[Image.Image]) -> Tensor:
        return self._keep(self.image(self.pixels(images).flatten(1)))

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Tensor:
        rows = [list(text.encode()[:64].ljust(64)) for text in texts]
        return self._keep(self.text(torch.tensor(rows, dtype=torch.float32) / 100))

    def _keep(self, out: Tensor) -> Tensor:
        self.kinds.add(out.dtype)
        return out.float()

    def save(self, directory: Path) -> None:
        raise NotImplementedError

    def fingerprint(self) -> str:
        return "layer"


def test_a_killed_process_loses_one_shard(root: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle; the same command goes on, and the result is that of an undisturbed run."""
    script = tmp_path / "slow.py"
    script.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from genius.data.extract import ExtractConfig, extract\n"
        "from genius.data.mbeir import MBeir\n"
        f"sys.path.append({str(HELPERS)!r})\n"
        "from shapes_encoder import ShapesEncoder\n"
        "class Slow(ShapesEncoder):\n"
        "    def encode_texts(self, texts):\n"
        "        time.sleep(0.1)\n"
        "        return super().encode_texts(texts)\n"
        "extract(Slow(16), MBeir(sys.argv[1], split='union_train'), sys.argv[2], ExtractConfig(4, 4, False))\n",
        encoding="utf-8",
    )
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, str(script), str(root), str(folder)])
    while len(list(folder.glob("progress/*.json"))) < 2 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(list(folder.glob("progress/*.json")))
    assert done >= 2 and not FeatureSet.is_folder(folder)
    assert subprocess.run([sys.executable, str(script), str(root), str(folder)]).returncode == 0
    whole = extract(ShapesEncoder(16), MBeir(root, split="union_train"), tmp_path / "whole", ExtractConfig(4, 4, False))
    again = FeatureSet.load(folder)
    assert (
        whole is not None
        and torch.equal(again.pool.image, whole.pool.image)
        and torch.equal(again.queries.text, whole.queries.text)
    )
    assert whole.times is not None and again.times is not None and torch.equal(again.times, whole.times)
    assert int(whole.times.sum()) == 12 + 6 and torch.equal(whole.pairs, again.pairs)  # WebQA's six occur once more


def test_worker_processes_give_the_same_vectors_and_name_a_broken_picture(root: Path, tmp_path: Path) -> None:
    plain = extract(Layer(), MBeir(root), tmp_path / "threads", ExtractConfig(4, 8, False))
    apart = extract(Layer(), MBeir(root), tmp_path / "processes", ExtractConfig(4, 8, False, workers=2))
    assert plain is not None and apart is not None
    assert torch.equal(plain.pool.image, apart.pool.image) and torch.equal(plain.queries.image, apart.queries.image)
    copy = write_synthetic_mbeir(tmp_path / "copy", rows=("nights_task4",), candidates=8, queries=2)
    victim = next(MBeir(copy).pool())
    Path(str(victim.image)).write_bytes(b"not a picture")
    config = ExtractConfig(4, 8, False, workers=1, on_error="skip")
    kept = extract(Layer(), MBeir(copy), tmp_path / "kept", config)
    assert kept is not None and victim.id not in kept.pool_ids and len(kept.pool) == 7
    assert "as an image" in (tmp_path / "kept" / "problems.txt").read_text()


def test_workers_never_get_the_weights() -> None:
    sent = pickle.dumps(sent_to_workers(Layer()))
    assert len(sent) < 500 and sent_to_workers(ShapesEncoder(16)).__name__ == "_at_most"


def test_half_precision_is_used_and_never_mixed_with_full(root: Path, tmp_path: Path) -> None:
    full, half = Layer(), Layer()
    exact = extract(full, MBeir(root), tmp_path / "fp32", ExtractConfig(4, 8, False))
    rounded = extract(half, MBeir(root), tmp_path / "bf16", ExtractConfig(4, 8, False, precision="bf16"))
    assert full.kinds == {torch.float32} and half.kinds == {torch.bfloat16}
    assert exact is not None and rounded is not None and not torch.equal(exact.pool.image, rounded.pool.image)
    assert torch.allclose(exact.pool.image, rounded.pool.image, atol=0.05)
    with pytest.raises(GeniusError, match="another precision"):
        extract(Layer(), MBeir(root), tmp_path / "bf16", ExtractConfig(4, 8, False))


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert base.find_device("auto", 3) == torch.device("cpu")
    with pytest.raises(GeniusError, match="has no GPU"):
        base.find_device("cuda")
    for name in ("gpu", "meta"):
        with pytest.raises(GeniusError, match="no device"):
            base.find_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [base.find_device("auto", share).index for share in range(4)] == [0, 1, 0, 1]  # each process its own GPU in turn
    with pytest.raises(GeniusError, match="has 2 GPUs"):
        base.find_device("cuda:2")
    moved: list[torch.device] = []
    monkeypatch.setattr(nn.Module, "to", lambda self, place: moved.append(place) or self)
    load_encoder(ENCODER, "auto", share=1)
    assert moved == [torch.device("cuda", 1)]
    load_encoder(ENCODER)
    assert len(moved) == 1


def test_a_full_disk_keeps_what_is_done(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = extract_module.write_rows
    calls = 0

    def failing(*shard: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError(28, "No space left on device")
        real(*shard)

    monkeypatch.setattr(extract_module, "write_rows", failing)
    config = ExtractConfig(4, 4, False)
    with pytest.raises(GeniusError, match=r"No space left on device\. What is done is kept"):
        extract(ShapesEncoder(16), MBeir(root), tmp_path / "f", config)
    marks = len(list((tmp_path / "f" / "progress").glob("*.json")))
    monkeypatch.setattr(extract_module, "write_rows", real)
    result = extract(ShapesEncoder(16), MBeir(root), tmp_path / "f", config)
    whole = extract(ShapesEncoder(16), MBeir(root), tmp_path / "whole", config)
    assert marks == 3 and result is not None and whole is not None and torch.equal(result.pool.image, whole.pool.image)


def test_the_command_shares_by_shards_and_says_what_does_not_fit(root: Path, tmp_path: Path) -> None:
    def run(*words: str, limit: int = 0) -> subprocess.CompletedProcess[str]:
        def small() -> None:
            if limit:  # the largest file this process may write: a disk that is full
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        command = [sys.executable, "-m", "genius", "features", "extract", ENCODER, f"mbeir:{root}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, preexec_fn=small)

    first = run(str(tmp_path / "f"), "--shard", "1/2", "--rows", "8", "--json", "--precision", "bf16", "--device", "auto")
    assert first.returncode == 0 and json.loads(first.stdout)["complete"] is False, first.stderr
    second = run(str(tmp_path / "f"), "--shard", "2/2", "--rows", "8", "--json", "--precision", "bf16")
    assert second.returncode == 0 and json.loads(second.stdout)["complete"] is True, second.stderr
    data = FeatureSet.load(tmp_path / "f")
    assert data.pool.image.dtype == torch.float16 and len(data.pool) == 32
    full = run(str(tmp_path / "full"), limit=9000)
    said = full.stderr.splitlines()
    assert full.returncode == 2 and said[-1].startswith("genius: ") and "What is done is kept" in full.stderr, full.stderr
    for words in (("--shard", "3/2"), ("--precision", "int4"), ("--tasks", "oven_task6")):
        bad = CliRunner().invoke(app, ["features", "extract", ENCODER, f"mbeir:{root}", str(tmp_path / "bad"), *words])
        assert bad.exit_code == 2 and "genius: " in bad.output
