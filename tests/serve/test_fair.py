"""Turns: nobody's crowd comes before somebody else's only job, nothing starves, nothing is lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.serve.batching import Batcher, FairQueue, PassSize, QueueFull

Waiting = tuple[str, str, str, int]  # lane, owner, group, number


def drawn(queue: FairQueue[Waiting], most: int = 1) -> tuple[str, list[Waiting]]:
    lane, jobs = queue.take(lambda lane: most, lambda a, b: a[2] == b[2])
    assert [who for who, _ in jobs] == [job[1] for _, job in jobs]
    return lane, [job for _, job in jobs]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.sampled_from("xyz"), st.sampled_from("abc"), st.sampled_from("12")),
            st.tuples(st.just("take"), st.integers(1, 4), st.floats(0, 2)),
            st.tuples(st.just("yield"), st.sampled_from("xyz"), st.sampled_from("abc")),
        ),
        max_size=60,
    )
)
def test_everything_comes_out_once_and_alike_jobs_together(steps: list[tuple[object, ...]]) -> None:
    queue: FairQueue[Waiting] = FairQueue()
    inside: list[Waiting] = []
    for number, step in enumerate(steps):
        if step[0] == "push":
            lane, owner, group = (str(part) for part in step[1:])
            queue.push((lane, owner, f"{lane}{group}", number), lane, owner)
            inside.append((lane, owner, f"{lane}{group}", number))
        elif step[0] == "take" and inside:
            lane, jobs = drawn(queue, int(step[1]))  # type: ignore[call-overload]
            assert 1 <= len(jobs) <= step[1] and len({job[2] for job in jobs}) == 1  # type: ignore[operator]
            lead = jobs[0]
            older = [job for job in inside if job[2] == lead[2] and job[1] == lead[1]]
            assert lead == older[0]  # an owner's own jobs of a kind keep their order
            if len(jobs) < step[1]:  # type: ignore[operator]
                assert set(jobs) == {job for job in inside if job[2] == lead[2]}
            for job in jobs:
                inside.remove(job)
            queue.charge(lane, [job[1] for job in jobs], float(step[2]))  # type: ignore[arg-type]
        elif step[0] == "yield":
            sizes = Counter((job[0], job[1]) for job in inside)
            gone = queue.evict(str(step[1]), str(step[2]))
            if gone is None:
                assert max(sizes.values(), default=0) < sizes[str(step[1]), str(step[2])] + 2
            else:
                cell = (gone[0], gone[1])
                assert sizes[cell] == max(sizes.values()) and sizes[cell] >= sizes[str(step[1]), str(step[2])] + 2
                assert gone == [job for job in inside if (job[0], job[1]) == cell][-1]
                inside.remove(gone)
        assert len(queue) == len(inside)
    assert sorted(queue.drain()) == sorted(inside) and len(queue) == 0


def test_a_single_job_waits_for_one_pass_however_many_are_before_it() -> None:
    queue: FairQueue[Waiting] = FairQueue()
    for n in range(200):
        queue.push(("slow", "crowd", f"g{n}", n), "slow", "crowd")
    for _ in range(20):
        queue.charge(drawn(queue)[0], ["crowd"], 1.0)
    queue.push(("quick", "one", "q", 1000), "quick", "one")
    assert drawn(queue)[1][0][1] == "one"  # another lane
    queue.charge("quick", ["one"], 0.01)
    queue.push(("slow", "two", "s", 1001), "slow", "two")
    assert drawn(queue)[1][0][1] == "two"  # the same lane, another owner
    queue.charge("slow", ["two"], 0.5)
    assert drawn(queue)[1][0][1] == "crowd"  # and nobody is forgotten


@pytest.mark.parametrize("costs", [(1.0, 1.0), (0.1, 1.0), (1.0, 0.05)])
def test_time_is_shared_evenly_between_owners_and_between_lanes(costs: tuple[float, float]) -> None:
    for same_lane in (True, False):
        queue: FairQueue[Waiting] = FairQueue()
        had = {"a": 0.0, "b": 0.0}
        for n in range(3000):
            for owner in had:
                lane = "x" if same_lane else owner
                queue.push((lane, owner, f"{owner}{n}", n), lane, owner)
        while sum(had.values()) < 100:
            lane, (job,) = drawn(queue)
            cost = costs[0] if job[1] == "a" else costs[1]
            had[job[1]] += cost
            queue.charge(lane, [job[1]], cost)
        assert abs(had["a"] - had["b"]) <= 1.0 + 1e-6


@pytest.mark.parametrize("same_lane", [True, False])
def test_who_was_away_saves_nothing_up(same_lane: bool) -> None:
    queue: FairQueue[Waiting] = FairQueue()
    late_lane = "x" if same_lane else "y"
    for n in range(100):
        queue.push(("x", "busy", f"{n}", n), "x", "busy")
    for _ in range(50):
        queue.charge(drawn(queue)[0], ["busy"], 1.0)
    for n in range(50):
        queue.push((late_lane, "late", f"l{n}", n), late_lane, "late")
    turns = []
    for _ in range(20):
        lane, (job,) = drawn(queue)
        turns.append(job[1])
        queue.charge(lane, [job[1]], 1.0)
    assert 9 <= turns.count("busy") <= 11


def test_a_shared_pass_is_charged_in_parts() -> None:
    """A and B share a pass of 1 s: half a second each. So A comes before C, who had 0.75 s alone."""
    queue: FairQueue[Waiting] = FairQueue()
    for owner in ("a", "b", "c"):
        for number in range(3):
            queue.push(("x", owner, f"{owner}{number}", number), "x", owner)
    queue.charge("x", ["a", "b"], 1.0)
    queue.charge("x", ["c"], 0.75)
    order = []
    for _ in range(3):
        lane, (job,) = drawn(queue)
        order.append(job[1])
        queue.charge(lane, [job[1]], 10.0)
    assert order == ["a", "b", "c"]


# -- the lines that use it ---------------------------------------------------------------------------------------


def test_a_full_line_takes_the_one_in_who_has_less() -> None:
    go, entered = threading.Event(), threading.Event()

    def run(jobs: Sequence[str]) -> list[str | BaseException]:
        entered.set()
        assert go.wait(60)
        return list(jobs)

    batcher: Batcher[str, str] = Batcher(run, max_batch=1, queue_size=4)
    first = batcher.submit("first", "crowd")
    assert entered.wait(60)
    crowd = [batcher.submit(f"crowd{n}", "crowd") for n in range(4)]
    with pytest.raises(QueueFull):
        batcher.submit("crowd4", "crowd")
    one = batcher.submit("one", "other")
    with pytest.raises(QueueFull):
        crowd[3].result(60)  # the newest of the crowd gave way
    two = batcher.submit("two", "other")  # 3 against 1: once more
    with pytest.raises(QueueFull):
        batcher.submit("three", "other")  # 2 against 2: no more
    go.set()
    assert [future.result(60)[0] for future in (first, crowd[0], crowd[1], one, two)] == [
        "first",
        "crowd0",
        "crowd1",
        "one",
        "two",
    ]
    assert batcher.close(60)


def test_passes_are_kept_short_and_each_is_answered_when_it_is_done() -> None:
    """Jobs of 20 ms in a lane whose passes may take 100 ms: about five a pass, and the first answers come first."""
    sizes: list[int] = []
    looked = threading.Event()

    def run(jobs: Sequence[int]) -> list[int | BaseException]:
        sizes.append(len(jobs))
        if len(sizes) > 1:
            assert looked.wait(60)
        time.sleep(0.02 * len(jobs))
        return list(jobs)

    batcher: Batcher[int, int] = Batcher(run, max_batch=32, queue_size=500, pass_s=0.1, cautious=("",))
    futures = [batcher.submit(n) for n in range(60)]
    assert futures[0].result(60)[0] == 0
    assert not futures[-1].done()
    looked.set()
    assert [future.result(60)[0] for future in futures] == list(range(60))
    assert sizes[0] == 1 and max(sizes) <= 5  # never more than fits; fewer when the machine is slow
    assert batcher.close(60)


@pytest.mark.parametrize(("fixed", "each"), [(0.0, 0.1), (0.02, 0.003), (0.3, 0.2), (1.0, 0.5), (0.0, 0.0001)])
def test_the_size_of_a_pass_settles_below_its_time(fixed: float, each: float) -> None:
    """Whatever a pass costs to begin with and each job more: soon none takes longer than allowed, if one job alone does not."""
    size = PassSize(32, 32, 0.5)
    took = []
    for _ in range(30):
        took.append(fixed + each * size.most)
        size.learn(size.most, took[-1])
    assert max(took[6:]) <= max(0.5, fixed + each)
    affordable = min(32, int((0.5 - fixed) / each))
    assert size.most >= max(1, affordable // 4)
    size = PassSize(32, 32, 0.5)
    size.learn(1, 5.0)  # a cold start
    assert size.most == 32
    size.learn(1, 5.0)
    assert size.most == 1
    for _ in range(20):
        size.learn(1, 0.01)
        size.learn(size.most, 0.01)
    assert size.most == 32  # and back, when it was only that


def test_only_one_group_a_pass() -> None:
    seen: list[list[int]] = []
    gate = threading.Event()

    def run(jobs: Sequence[int]) -> list[int | BaseException]:
        assert gate.wait(60)
        seen.append(list(jobs))
        return list(jobs)

    batcher: Batcher[int, int] = Batcher(run, max_batch=8, queue_size=100, group=lambda job: job % 3)
    futures = [batcher.submit(n) for n in range(12)]
    gate.set()
    for future in futures:
        future.result(60)
    assert all(len({job % 3 for job in batch}) == 1 for batch in seen)
    assert sorted(job for batch in seen for job in batch) == list(range(12))
    assert batcher.close(60)


def test_several_workers_run_at_once_and_lose_nothing() -> None:
    together, most, lock = [0], [0], threading.Lock()
    all_at_work = threading.Event()

    def run(jobs: Sequence[int]) -> list[int | BaseException]:
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
            if together[0] == 3:
                all_at_work.set()
        assert all_at_work.wait(60)
        with lock:
            together[0] -= 1
        return [2 * job for job in jobs]

    batcher: Batcher[int, int] = Batcher(run, max_batch=1, queue_size=1000, workers=3)
    futures = [batcher.submit(n, str(n % 4)) for n in range(100)]
    assert [future.result(60)[0] for future in futures] == [2 * n for n in range(100)]
    assert most[0] == 3 and batcher.close(60)
