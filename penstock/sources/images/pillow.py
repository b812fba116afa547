"""Images that OpenCV or libjpeg-turbo cannot read, or read otherwise: Pillow decides, where it is installed.

Covers: which images are Pillow's from the start, decoding them.
Does not cover: everything else (decode.py).

OpenCV multiplies the colours of TIFF files by their alpha, shows signed numbers as if they had none, knows no colour
behind the transparent pixels of a GIF or around its first frame, takes the colours of every 32-bit BMP for those of the
usual order, and shows a BMP's palette as pixels where the file says that they begin there.
Both have no JPEG, TIFF, BMP or GIF of rarer kinds. Pillow is the optional extra `pillow`.
"""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np

from penstock.core.errors import BadData
from penstock.sources.images.header import Header, bmp_begins_in_palette, bmp_has_masks, gif_is_plain, tiff_is_plain

_MODES = {"rgb": "RGB", "bgr": "RGB", "gray": "L", "rgba": "RGBA"}
_EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")


def is_pillows(data: bytes, header: Header) -> bool:
    """Whether OpenCV would give other pixels than Pillow."""
    if header.kind == "TIFF":
        return not tiff_is_plain(data)
    if header.kind == "BMP":
        return bmp_has_masks(data) or bmp_begins_in_palette(data)
    return header.kind == "GIF" and not gif_is_plain(data)


def installed() -> bool:
    """Whether Pillow is there."""
    return _pillow() is not None


@functools.cache
def _pillow() -> Any:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        return None
    return Image, ImageOps


def pixels(data: bytes, header: Header, mode: str, where: str, because: str) -> np.ndarray:
    """The image in 8 bits, turned if it is a TIFF. `BadData` if Pillow has no better answer than `because`."""
    found = _pillow()
    if found is None:
        raise BadData(where, f"{because}. Pillow may read it: pip install 'penstock[pillow]'")
    try:
        return _decoded(found, data, header, mode)
    except MemoryError:
        raise
    except Exception as error:  # plug-ins raise what they like: OSError, ValueError, SyntaxError, struct.error, ...
        raise BadData(where, f"{because} (Pillow: {type(error).__name__}: {error})") from None


def _decoded(modules: tuple[Any, Any], data: bytes, header: Header, mode: str) -> np.ndarray:
    image_module, operations = modules
    with image_module.open(io.BytesIO(data)) as image:
        if image.width * image.height > header.width * header.height:
            raise ValueError(f"it has {image.width} x {image.height} pixels, more than its header told")
        if image.mode not in _EIGHT_BITS:
            raise ValueError(f"its pixels ({image.mode}) have no meaning in 8 bits")
        turned = operations.exif_transpose(image) if header.kind == "TIFF" else image
        array = np.asarray(turned.convert(_MODES[mode]))
    array = array[:, :, ::-1] if mode == "bgr" else array
    return np.ascontiguousarray(array)
