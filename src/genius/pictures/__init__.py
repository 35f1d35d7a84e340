"""Pictures: which formats are read, how they become upright RGB, and what reading them may cost.

Knows files and pixels; knows nothing of items, models or HTTP. `load_image` is the one way in, for files of strangers
too: formats come from one list, memory is bounded, and what may crash is read in a process of its own.
"""

from genius.errors import PictureError
from genius.pictures.load import IMAGE_SUFFIXES, ImageInput, load_image

__all__ = ["IMAGE_SUFFIXES", "ImageInput", "PictureError", "load_image"]
