"""Requests made up from our own OpenAPI document, good and bad: no 500, and only answers that the document promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from genius.index import Index
from genius.serve.app import create_app
from genius.serve.settings import ServeConfig

EXAMPLES = 12  # of each operation and mode
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def attempt(operation: Any, mode: GenerationMode, statuses: Counter[int]) -> None:
    """Send made-up requests to one operation and check every answer."""

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,  # the same requests every time: a failure can be repeated
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def one(case: schemathesis.Case) -> None:
        answer = case.call()
        statuses[answer.status_code] += 1
        # in a form everything is text and an empty field is an absent one: only JSON can be clearly wrong
        strict = mode is GenerationMode.NEGATIVE and case.media_type == "application/json"
        case.validate_response(answer, checks=[*CHECKS, negative_data_rejection] if strict else CHECKS)

    with suppress(Unsatisfiable):  # no wrong value can be thought of for some parameters
        one()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_only_documented_answers(make_index: Callable[..., Index], mode: GenerationMode) -> None:
    app = create_app(make_index(18), ServeConfig())
    statuses: Counter[int] = Counter()
    for found in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.POSITIVE or operation.body or operation.path_parameters:  # else: nothing to get wrong
            attempt(operation, mode, statuses)
    app.state.service.close()
    assert sum(statuses.values()) >= 50, statuses
    assert all(status < 500 for status in statuses), statuses
