"""Fixtures of encoder tests."""

from encoder_fixtures import pictures, tokenizer_file

__all__ = ["pictures", "tokenizer_file"]
