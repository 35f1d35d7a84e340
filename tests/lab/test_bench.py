"""`python -m lab bench`: the JSON that machines read, equality with the published way, one-line errors."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lab.__main__ import app
from lab.speed.engine import synthetic_codes

SMALL = ["--items", "400", "--beams", "5", "--batch", "2", "--size", "tiny", "--rounds", "1", "--threads", "1"]


def test_json_and_equality_with_the_published_way() -> None:
    pytest.importorskip("transformers")
    result = CliRunner().invoke(app, ["bench", *SMALL, "--rerank", "50", "--json"])
    assert result.exit_code == 0, result.output
    measured = json.loads(result.stdout)
    assert measured["equal_to_published"] is True
    for search in (measured["ours"]["exact"], measured["ours"]["default"], measured["rivals"]["published"]):
        assert search["qps"] > 0 and 0 < search["p50_ms"] <= search["p95_ms"]
    assert 0 < measured["bytes_per_item"] <= 24 and measured["build_s"] >= 0
    assert measured["ours"]["default"]["items_touched"] == 400  # a small collection is compared whole


def test_without_rivals_and_for_people() -> None:
    result = CliRunner().invoke(app, ["bench", *SMALL, "--rivals", "none", "--codes", "zipf"])
    assert result.exit_code == 0, result.output
    assert "ours, exact" in result.stdout and "bytes an item" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--items", "0"], "items must be at least 1"),
        (["--rivals", "nobody"], "unknown rival 'nobody'"),
        (["--codes", "normal"], "codes must be"),
        (["--size", "huge"], "size must be one of"),
        (["--rivals", "gpu-flat"], "gpu-flat needs"),
    ],
)
def test_bad_options_are_one_line(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", *SMALL, *options])
    assert result.exit_code == 2
    assert message in result.output and len(result.output.strip().splitlines()) == 1


def test_zipf_codes_are_skewed_and_in_range() -> None:
    codes = synthetic_codes(5000, (3, 100, 100), "zipf")
    assert codes.min() >= 0 and codes[:, 1].max() < 100 and (codes[:, 1] == 0).mean() > 0.1
