"""The version of this installation; a leaf, so that every room may name it."""

__version__ = "0.1.0"
