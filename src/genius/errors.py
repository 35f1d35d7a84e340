"""The one exception users are meant to see, and its kind for pictures.

The command line prints its message on one line and exits with status 2; the server answers 4xx with it.
Anything else that escapes is a bug.
"""


class GeniusError(ValueError):
    """Bad input, a foreign file, a wrong size: the message says what is wrong and what to do."""


class PictureError(GeniusError):
    """A picture that cannot be used; the message names it."""
