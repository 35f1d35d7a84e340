"""The ledger against every way of cutting and changing it: it says what was acknowledged, or that it is damaged."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.index.ledger import MAPPED_FROM, Damaged, Ledger, LedgerState, file_sum

ABOUT = {"format": 2, "id": "x"}


def fill(folder: Path, changes: int = 4) -> list[LedgerState]:
    """A ledger with some changes; what it says after each."""
    ledger = Ledger(folder)
    ledger.rewrite(LedgerState(ABOUT, 1, 0, frozenset({1}), {"_versions/1.manifest": f"10:{'a' * 32}"}))
    states = [ledger.read()]
    for version in range(2, changes + 2):
        if version == 3:
            ledger.append({"cleaning": True})
            states.append(ledger.read())
        ledger.acknowledge(version, version * 10, {f"data/{version}.lance": f"5:{'b' * 32}"})
        states.append(ledger.read())
    return [state for state in states if state is not None]


def test_it_says_what_was_written(tmp_path: Path) -> None:
    assert Ledger(tmp_path).read() is None
    states = fill(tmp_path)
    last = states[-1]
    assert (last.head, last.items, last.cleaning) == (5, 50, False) and len(last.files) == 5 and last.about == ABOUT
    assert Ledger(tmp_path).read() == last


def test_cut_anywhere_it_is_an_earlier_one(tmp_path: Path) -> None:
    """What a crash leaves of a line was never acknowledged."""
    states = fill(tmp_path)
    body = (tmp_path / "ledger.jsonl").read_bytes()
    first = body.index(b"\n", body.index(b"\n") + 1) + 1  # the two lines that appear together
    for end in range(first, len(body) + 1):
        (tmp_path / "ledger.jsonl").write_bytes(body[:end])
        assert Ledger(tmp_path).read() in states, end
        (tmp_path / "ledger.jsonl").write_bytes(body[:end] + bytes(len(body) - end))  # room taken, bytes not written
        assert Ledger(tmp_path).read() in states, end


def test_any_flipped_bit_is_damage(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    path = tmp_path / "ledger.jsonl"
    body = path.read_bytes()
    ends = [8 * (i + 1) - 1 - bit for i, byte in enumerate(body) if byte == 10 for bit in range(8)]
    for bit in [*range(0, 8 * len(body), 3), *ends]:
        changed = bytearray(body)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(Damaged):
            Ledger(tmp_path).read()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["append", "rewrite", "torn", "read"]), min_size=1, max_size=20))
def test_a_reader_follows_a_writer(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        fill(path, 1)
        writer, reader = Ledger(path), Ledger(path)
        for number, step in enumerate(steps, start=10):
            if step == "append":
                writer.acknowledge(number, number, {f"data/{number}": f"1:{'c' * 32}"})
            elif step == "rewrite":
                state = writer.read()
                assert state is not None
                writer.rewrite(LedgerState(ABOUT, state.head, state.items, state.shown))
            elif step == "torn":
                with (path / "ledger.jsonl").open("ab") as file:
                    file.write(b'0123456789abcdef {"version":')
            else:
                assert reader.read() == Ledger(path).read()
            os.utime(path / "ledger.jsonl", ns=(number, number))  # times need not move on
        assert reader.read() == Ledger(path).read() == writer.read()


@pytest.mark.parametrize("size", [0, 1, MAPPED_FROM - 1, MAPPED_FROM, 2 * MAPPED_FROM + 17])
def test_the_checksum_of_a_file_is_over_all_of_it(tmp_path: Path, size: int) -> None:
    """However it is read: ledgers of earlier versions have the checksum of the whole file."""
    body = np.random.default_rng(size).bytes(size)
    (tmp_path / "file").write_bytes(body)
    assert file_sum(tmp_path / "file") == f"{size}:{xxhash.xxh3_128_hexdigest(body)}"
