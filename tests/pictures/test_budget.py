"""Room for decoding: never more than there is, in the order of arrival, nothing lost on the way out."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from genius.pictures import Budget, give_back


def test_never_more_than_the_capacity_unless_alone() -> None:
    budget, inside, worst, lock = Budget(100), [0], [0], threading.Lock()

    def use(size: int) -> None:
        with budget.reserve(size):
            with lock:
                inside[0] += size
                worst[0] = max(worst[0], inside[0])
                assert inside[0] <= 100 or inside[0] == size == 250
            time.sleep(0.001)
            with lock:
                inside[0] -= size

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(use, [10, 30, 100, 250, 60, 1] * 30))
    assert budget.used == 0 and worst[0] == 250


def test_a_large_one_is_not_passed_over() -> None:
    budget, order = Budget(100), []
    first = budget.reserve(60)
    first.__enter__()

    def take(size: int) -> None:
        with budget.reserve(size):
            order.append(size)

    large = threading.Thread(target=take, args=(90,))
    large.start()
    while not budget._line:
        time.sleep(0.001)
    small = threading.Thread(target=take, args=(10,))  # would fit at once, but came later
    small.start()
    small.join(0.05)
    assert order == []
    first.__exit__(None, None, None)
    large.join(5)
    small.join(5)
    assert order == [90, 10]


def test_room_is_free_again_after_an_error() -> None:
    budget = Budget(10)
    with pytest.raises(ValueError), budget.reserve(10):
        raise ValueError
    assert budget.used == 0
    give_back(10**9)  # harmless anywhere
