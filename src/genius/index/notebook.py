"""Hits as a notebook shows them: a grid of pictures, texts and scores. Nothing is loaded from anywhere but the hits."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

from genius.errors import GeniusError
from genius.pictures.load import loaded

SIDE, SHOWN = 160, 24
CARD = "display:inline-block;width:170px;margin:4px;vertical-align:top;font:12px sans-serif;overflow-wrap:anywhere"


def grid(hits: Sequence[Any], why: str | None) -> str:
    cards = "".join(_card(rank, hit) for rank, hit in enumerate(hits[:SHOWN], start=1))
    more = f"<p>... and {len(hits) - SHOWN} more</p>" if len(hits) > SHOWN else ""
    return f"<div>{cards}{more}</div>" if hits else f"<p>{html.escape(why or 'nothing found')}</p>"


def _card(rank: int, hit: Any) -> str:
    words = html.escape((hit.item.text or "")[:120])
    about = f"<b>{rank}</b> {hit.score:.3f}<br>{html.escape(hit.id[-60:])}<br><i>{words}</i>"
    return f'<div style="{CARD}">{_picture(hit)}{about}</div>'


def _picture(hit: Any) -> str:
    if hit.item.image is None:
        return ""
    try:
        with loaded(hit.item.image, least=SIDE) as picture:
            small = picture.copy()
    except GeniusError:
        return "<div>(the picture is gone)</div>"
    small.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{html.escape(hit.id, quote=True)}"><br>'
