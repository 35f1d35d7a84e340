"""The simulation of replicas against queueing theory, and the arithmetic of cost against what the page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.ray import measured
from lab.ray.cost import RATES, cost, table
from lab.ray.replicas import Service, simulate

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_one_at_a_time_is_the_textbook(share: float) -> None:
    """M/D/1: the mean time is s + s * rho / (2 (1 - rho))."""
    service = Service(fixed_ms=10.0, each_ms=0.0, batch=1, queue=10**6)
    found = simulate(service, load=100 * share, replicas=1, questions=60_000)
    assert found.mean_ms == pytest.approx(10 + 10 * share / (2 * (1 - share)), rel=0.05)
    assert found.busy == pytest.approx(share, rel=0.05)


def test_more_replicas_are_quicker_and_too_few_refuse() -> None:
    service = Service(fixed_ms=20.0, each_ms=5.0, queue=64)
    few, enough, many = (simulate(service, load=500, replicas=count, questions=8000) for count in (2, 4, 8))
    assert few.refused > 0.1 and enough.refused == many.refused == 0
    assert few.p95_ms > enough.p95_ms > many.p95_ms >= 25


def test_the_page_shows_what_the_arithmetic_says() -> None:
    rates = json.loads(RATES.read_text())["items_per_core_second"]
    assert table(rates["pictures"], 256, 0.0) in PAGE.read_text()
    assert cost(3600 * 50, 50, 256, 0)["worker_hours"] == 1


def test_the_page_shows_what_was_measured() -> None:
    assert measured.table() in PAGE.read_text()
