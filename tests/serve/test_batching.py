"""The queue: groups what waits, stays bounded, runs nothing in vain, loses nothing when it closes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait

import pytest

from genius.serve.batching import Batcher, Closed, QueueFull


class Worker:
    """Doubles numbers, once it is let."""

    def __init__(self, held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.entered = threading.Event()
        self.may_go = threading.Event()
        if not held:
            self.may_go.set()

    def __call__(self, jobs: Sequence[int]) -> list[int | BaseException]:
        self.batches.append(list(jobs))
        self.entered.set()
        assert self.may_go.wait(60)
        return [ValueError(f"bad {job}") if job < 0 else 2 * job for job in jobs]


def test_what_queues_while_busy_shares_the_next_pass() -> None:
    worker = Worker(held=True)
    batcher: Batcher[int, int] = Batcher(worker, max_batch=4, queue_size=100)
    first = batcher.submit(1)
    assert worker.entered.wait(60)
    rest = [batcher.submit(i) for i in range(2, 12)]
    worker.may_go.set()
    assert first.result(60) == (2, 1)
    assert [future.result(60)[0] for future in rest] == [2 * i for i in range(2, 12)]
    assert [len(batch) for batch in worker.batches] == [1, 4, 4, 2]
    assert rest[0].result() == (4, 4)
    assert batcher.close(60)


def test_the_queue_is_bounded_and_says_when_to_return() -> None:
    worker = Worker(held=True)
    batcher: Batcher[int, int] = Batcher(worker, max_batch=1, queue_size=3)
    futures = [batcher.submit(0)]
    assert worker.entered.wait(60)
    futures += [batcher.submit(i) for i in range(3)]
    with pytest.raises(QueueFull) as full:
        batcher.submit(9)
    assert 1 <= full.value.retry_after <= 60
    worker.may_go.set()
    wait(futures, 60)
    assert batcher.submit(5).result(60)[0] == 10  # room again
    assert batcher.close(60)


def test_a_failing_job_fails_alone() -> None:
    batcher: Batcher[int, int] = Batcher(Worker(), max_batch=8, queue_size=8)
    futures = [batcher.submit(i) for i in (1, -2, 3)]
    assert futures[0].result(60)[0] == 2 and futures[2].result(60)[0] == 6
    with pytest.raises(ValueError, match="bad -2"):
        futures[1].result(60)
    assert batcher.close(60)


def test_a_crash_of_the_whole_pass_does_not_kill_the_worker() -> None:
    calls = 0

    def crash_once(jobs: Sequence[int]) -> list[int | BaseException]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise MemoryError("boom")
        return list(jobs)

    batcher: Batcher[int, int] = Batcher(crash_once, max_batch=8, queue_size=8)
    with pytest.raises(MemoryError):
        batcher.submit(1).result(60)
    assert batcher.submit(2).result(60)[0] == 2
    assert batcher.close(60)


def test_cancelled_jobs_are_not_run() -> None:
    worker = Worker(held=True)
    batcher: Batcher[int, int] = Batcher(worker, max_batch=8, queue_size=8)
    first = batcher.submit(1)
    assert worker.entered.wait(60)
    cancelled, fine = batcher.submit(3), batcher.submit(4)
    assert cancelled.cancel()
    worker.may_go.set()
    assert first.result(60)[0] == 2 and fine.result(60)[0] == 8
    assert worker.batches == [[1], [4]]
    assert batcher.close(60)


def test_closing_finishes_what_is_queued_and_takes_no_more() -> None:
    worker = Worker(held=True)
    batcher: Batcher[int, int] = Batcher(worker, max_batch=2, queue_size=100)
    futures = [batcher.submit(i) for i in range(7)]
    assert worker.entered.wait(60)
    closing: Future[bool] = Future()
    threading.Thread(target=lambda: closing.set_result(batcher.close(60))).start()
    while True:
        try:
            batcher.submit(99).cancel()
            time.sleep(0.001)
        except Closed:
            break
    worker.may_go.set()
    assert closing.result(60) is True
    assert [future.result(0)[0] for future in futures] == [2 * i for i in range(7)]


def test_closing_gives_up_on_a_hung_pass_and_tells_the_waiting() -> None:
    worker = Worker(held=True)
    batcher: Batcher[int, int] = Batcher(worker, max_batch=1, queue_size=10)
    batcher.submit(1)
    assert worker.entered.wait(60)
    waiting = batcher.submit(2)
    assert batcher.stuck_s > 0
    assert batcher.close(0.05) is False
    with pytest.raises(Closed):
        waiting.result(60)
    worker.may_go.set()


def test_many_threads_all_get_their_own_answer() -> None:
    batcher: Batcher[int, int] = Batcher(Worker(), max_batch=16, queue_size=1000)
    wrong: list[int] = []

    def caller(start: int) -> None:
        for i in range(start, start + 50):
            if batcher.submit(i).result(60)[0] != 2 * i:
                wrong.append(i)

    threads = [threading.Thread(target=caller, args=(1000 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and batcher.close(60)
