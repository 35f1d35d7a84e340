"""Answers that differ, asked for over HTTP: what a question gets does not depend on who asks beside it."""

from __future__ import annotations

from collections.abc import Callable

from genius import Index, Query
from genius.search import SearchRequest
from genius.serve.backend import Backend, Job


def test_a_pass_that_is_shared_changes_no_answer(make_index: Callable[..., Index]) -> None:
    index = make_index()
    jobs = [Job(Query(text="red circle"), SearchRequest(k, diverse=True)) for k in (2, 3, 4, 5, 6, 8, 12, 16)]
    backend = Backend(index)
    assert len({job.group for job in jobs}) == 1  # so the service runs them together
    together, alone = backend.run(jobs), [backend.run([job])[0] for job in jobs]
    for job, one, other in zip(jobs, together, alone, strict=True):
        wanted = [hit.id for hit in index.search_many([job.query], job.request)[0]]
        assert [hit.id for hit in one.hits] == [hit.id for hit in other.hits] == wanted
