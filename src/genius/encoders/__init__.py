"""Encoders: one file per family, one small protocol (`base`), one registry by URI (`registry`)."""

from genius.encoders.base import Encoder, encode_items, encode_queries
from genius.encoders.registry import load_encoder, resolve

__all__ = ["Encoder", "encode_items", "encode_queries", "load_encoder", "resolve"]
