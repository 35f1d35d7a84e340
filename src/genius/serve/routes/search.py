"""`POST /v1/search`, `POST /v1/explain`."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from fastapi.responses import Response

from genius.serve.bodies import read_search
from genius.serve.routes import BODY_ERRORS, allowed, answer, body_doc, caller_of, form_of, unless_gone
from genius.serve.schemas import ExplainResponse, SearchBody, SearchResponse

router = APIRouter(tags=["search"])

TINY_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFElEQVR4nGO4I2N0TkiHAUIBGQAhnQQkHL0E6wAAAABJRU5ErkJggg=="
EXAMPLES = {
    "words": {"text": "a red bicycle", "target": "image", "k": 5},
    "words within a filter": {"text": "a red bicycle", "where": "price < 50 AND colour = 'red'", "min_score": 0.2},
    "a picture": {"image": TINY_PNG, "k": 5},
    "a picture, but different": {"image": TINY_PNG, "text": "the same in blue", "target": "image"},
    "like an item, but different": {"like": "photos/bike.jpg", "text": "the same in blue"},
    "not like something": {"text": "a bicycle", "minus": "a child", "diverse": True},
}


@router.post(
    "/v1/search",
    response_model=SearchResponse,
    responses=BODY_ERRORS,
    openapi_extra=body_doc(SearchBody, EXAMPLES, form_of(SearchBody)),
    summary="Find items with words, a picture, or both",
)
async def search(request: Request) -> Response:
    """Send JSON (the picture as base64) or multipart (the picture as a file). Best results first.

    Requests that arrive together share one pass through the model. When too many wait, the answer is 503 with
    `Retry-After`: nothing is queued without bound.
    """
    started = time.perf_counter()
    service = allowed(request, "read")
    with service.admitted():
        asked, picture = await read_search(request, service.config)
        found, batch = await unless_gone(request, service.search(asked, picture, caller_of(request)))
    took = round((time.perf_counter() - started) * 1000, 3)
    return answer(SearchResponse(**vars(found), took_ms=took, batch_size=batch))


@router.post(
    "/v1/explain",
    response_model=ExplainResponse,
    responses=BODY_ERRORS,
    openapi_extra=body_doc(SearchBody, EXAMPLES, form_of(SearchBody)),
    summary="How the answers to a question come about",
)
async def explain(request: Request) -> Response:
    """The same body as a search. At every step of the writing: the codes that were kept, those that lead to answers and the best
    that were rejected, how likely each was (log p), how many items, which words and which examples live below it. At most ten
    answers are explained."""
    service = allowed(request, "read")
    with service.admitted():
        asked, picture = await read_search(request, service.config)
        found = await unless_gone(request, service.explain(asked, picture, caller_of(request)))
    return answer(ExplainResponse(**found))
