"""For the tests of scale."""

from __future__ import annotations


class Killed(BaseException):
    """Stands for a kill: nothing catches it, nothing is cleaned up behind it."""
