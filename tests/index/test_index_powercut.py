"""A disk that forgets what was not synced, once: many rounds: `lab/results/durability`."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import powercut
import pytest

from genius import Genius, GeniusError, Index
from genius.index.check import check

pytestmark = pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and a C compiler")

WRITER = """
import os, sys
sys.path.insert(0, {helpers!r})
from fake_encoder import fake_model
from genius import Index, Item, files
from genius.index import commit, ledger
if not {syncing}:
    files.sync_file = files.sync_directory = files.sync_handle = ledger.sync_handle = commit.sync_tree = lambda *_: None
index = Index({path!r}, fake_model())
for step in range(6):
    index.add([Item(f"{{step}}-{{i}}", text=f"thing {{i}}", metadata={{f"k{{step % 3}}": i}}) for i in range(5)])
index.delete(["0-0", "1-1"])
index.optimize()
index.upsert([Item("2-2", text="again")])
print("acknowledged", flush=True)
index.store.append(index.store._table.to_arrow().slice(0, 3))  # in flight when the power goes
os._exit(0)
"""


@pytest.mark.parametrize("syncing", [True, False])
def test_what_was_acknowledged_is_there_after_a_power_cut(syncing: bool, model: Genius, tmp_path: Path) -> None:
    disk, store = tmp_path / "disk", tmp_path / "store"
    disk.mkdir()
    store.mkdir()
    shim = powercut.compile_shim(tmp_path)
    before = powercut.look(disk)
    code = WRITER.format(helpers=str(Path(powercut.__file__).parent), path=str(disk / "i.genius"), syncing=syncing)
    shimmed = {"LD_PRELOAD": str(shim), "POWERCUT_ROOT": str(disk), "POWERCUT_STORE": str(store), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **shimmed}, capture_output=True, text=True)
    assert "acknowledged" in done.stdout, done.stderr
    safe, actual, rng = powercut.synced(before, store), powercut.look(disk), random.Random(1)
    expected = {f"{step}-{i}" for step in range(6) for i in range(5)} - {"0-0", "1-1"}
    lost = 0
    for state in range(8):
        powercut.after_cut(safe, actual, tmp_path / "cut", rng, strict=state == 0)
        path = tmp_path / "cut" / "i.genius"
        try:
            index = Index(path, model, create=False)
            whole = {item.id for item in index.items()} == expected and index.get("2-2").text == "again"
            good = whole and all("cache/" in line or "harmless" in line for line in check(path).problems)
        except GeniusError:
            good = False
        lost += not good
    assert (lost == 0) if syncing else (lost > 0)  # the second shows that the first can fail
