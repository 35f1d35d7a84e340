"""The version of this installation; a leaf, so that every module may import it."""

__version__ = "0.1.0"
