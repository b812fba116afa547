"""Image bytes to pixels: uint8 arrays of height x width x channels.

Covers: decoding, turning by EXIF, cropping and resizing, straight into a given array.
Does not cover: reading files (source.py), reading headers (header.py).

JPEG goes through kernels of our own (native/jpeg.py) where they can, else through libjpeg-turbo (simplejpeg), to equal
pixels; both decode into a given buffer without the GIL. PNG, WebP, BMP, GIF (first frame) and TIFF (first page) go
through OpenCV, and what it cannot read through Pillow (pillow.py). Each thread recycles its decode buffers: fresh pages
for each image cost 1.3 to 1.5 times the whole decode. They belong to the thread, whichever run it reads for; who pays
for them comes as an argument.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.core.errors import BadData, InvalidInput, MissingExtra
from penstock.core.events import fell_back
from penstock.core.source import NEW_MEMORY, Buffers, BytesOnLease
from penstock.native import jpeg as own
from penstock.sources.images import pillow
from penstock.sources.images.giant import decoding
from penstock.sources.images.header import Header, bmp_has_alpha, png_is_coloured, png_without_animation, read_header

Mode = Literal["rgb", "bgr", "gray", "rgba"]
Crop = Literal["center", "pad", "none"]
Room = own.Room
"""Gives a flat buffer of some bytes for a purpose."""

CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1, "rgba": 4}
MAX_PIXELS = 100_000_000
"""300 MB of RGB for one image: beyond that an image is refused by name unless `max_pixels` is raised."""

SCRATCH_NBYTES = 48_000_000
"""The largest buffer a thread keeps (a 16-megapixel photo); larger images get one for themselves."""

_INTERPOLATIONS = {"linear": "INTER_LINEAR", "area": "INTER_AREA", "cubic": "INTER_CUBIC", "nearest": "INTER_NEAREST"}
# libjpeg repairs these without loss; tf.io.decode_jpeg accepts them too. Web-scale sets are full of them.
_HARMLESS = ("extraneous bytes before marker", "Invalid SOS parameters")
_DAMAGE = ("premature end", "bad huffman", "corrupt jpeg data: found marker", "missing eoi")
"""Words of libjpeg for pixels that are lost: no other decoder has them, and some would make them up."""


@dataclass(frozen=True)
class ImageOptions:
    """How images are decoded. `scaled` lets JPEGs be decoded at 1/2, 1/4 or 1/8: faster, and different pixels."""

    size: tuple[int, int] | None = None
    crop: Crop = "none"
    mode: Mode = "rgb"
    interpolation: str = "linear"
    fast: bool = False
    scaled: bool = False
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if self.mode not in CHANNELS:
            raise InvalidInput(f"mode must be one of {', '.join(CHANNELS)}, not {self.mode!r}.")
        if self.crop not in ("center", "pad", "none"):
            raise InvalidInput(f"crop must be 'center', 'pad' or 'none', not {self.crop!r}.")
        if self.interpolation not in _INTERPOLATIONS:
            raise InvalidInput(
                f"interpolation must be one of {', '.join(_INTERPOLATIONS)}, not {self.interpolation!r}."
            )
        if self.size is None and (self.scaled or self.crop != "none"):
            raise InvalidInput("crop and scaled need a size=(height, width) to aim at.")
        if self.max_pixels < 1:
            raise InvalidInput(f"max_pixels must be at least 1, not {self.max_pixels}.")

    @property
    def channels(self) -> int:
        return CHANNELS[self.mode]


def decode_image(
    data: bytes, options: ImageOptions, *, where: str = "image", buffers: Buffers = NEW_MEMORY
) -> np.ndarray:
    """A new array with the image. Raises BadData, which names `where`, if it cannot be decoded."""
    if options.size is not None:
        out = np.empty((*options.size, options.channels), np.uint8)
        decode_image_into(data, out, options, where=where, buffers=buffers)
        return out
    header = _checked(data, options, where)
    with decoding(data, header, options.channels, where, buffers):
        pixels = _turned(_pixels(data, header, options, where, _new, _room(buffers)), header.orientation, _new)
    return np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], options.channels))


def decode_image_into(
    data: bytes, out: np.ndarray, options: ImageOptions, *, where: str = "image", buffers: Buffers = NEW_MEMORY
) -> None:
    """Decode, turn, crop and resize into `out` (height x width x channels, contiguous)."""
    header = _checked(data, options, where)
    scratch, room = _scratch(), _room(buffers)
    try:
        with decoding(data, header, options.channels, where, buffers):
            if header.kind == "JPEG" and header.orientation == 1 and (header.height, header.width) == out.shape[:2]:
                _jpeg_pixels(data, header, options, where, out, room)
                return
            pixels = _turned(_pixels(data, header, options, where, room, room), header.orientation, room)
            _fit(pixels, out, options)
    finally:
        scratch.trim()


def _checked(data: bytes, options: ImageOptions, where: str) -> Header:
    try:
        header = read_header(data)
    except ValueError as error:
        raise BadData(where, str(error)) from None
    if header.height * header.width > options.max_pixels:
        raise BadData(
            where,
            f"the {header.kind} header gives {header.width} x {header.height} pixels, more than max_pixels="
            f"{options.max_pixels}. Raise max_pixels if such images are meant to be read",
        )
    return header


def _pixels(data: bytes, header: Header, options: ImageOptions, where: str, image: Room, room: Room) -> np.ndarray:
    """The image as it is stored, in memory of `image`; the decoder's own comes from `room`."""
    if header.kind != "JPEG":
        return _other_pixels(data, header, options, where)
    height, width = _scaled_size(header, options)
    nbytes = height * width * options.channels
    return _jpeg_pixels(data, header, options, where, image("decode", nbytes), room, (height, width))


def _scaled_size(header: Header, options: ImageOptions) -> tuple[int, int]:
    height, width = header.height, header.width
    if not options.scaled or options.size is None:
        return height, width
    need = options.size if header.orientation < 5 else options.size[::-1]
    if options.crop == "pad":  # the side that fits first decides how small the image becomes
        factor = min(need[0] / height, need[1] / width)
        need = (int(height * factor), int(width * factor))
    # Only halves: libjpeg-turbo has fast code for them, 5/8 is slower than decoding everything.
    for shift in (3, 2, 1):
        smaller = (-(-height >> shift), -(-width >> shift))
        if smaller[0] >= need[0] and smaller[1] >= need[1]:
            return smaller
    return height, width


def _jpeg_pixels(
    data: bytes,
    header: Header,
    options: ImageOptions,
    where: str,
    buffer: np.ndarray,
    room: Room,
    scaled: tuple[int, int] = (0, 0),
) -> np.ndarray:
    size = (header.height, header.width)
    if scaled in ((0, 0), size) and own.decode(data, options.mode, options.fast, buffer.reshape(-1), room):
        return buffer.reshape(*size, 3)
    simplejpeg = _simplejpeg()
    if scaled in ((0, 0), size) and options.mode in ("rgb", "bgr"):
        fell_back("JPEG", "a kind that only libjpeg-turbo reads")
    smaller = scaled if scaled != size else (0, 0)
    asked: dict[str, Any] = {
        "colorspace": options.mode.upper(),
        "fastdct": options.fast,
        "fastupsample": options.fast,
        "min_height": smaller[0],
        "min_width": smaller[1],
        "buffer": buffer,
    }
    for strict in (True, False):
        try:
            pixels: np.ndarray = simplejpeg.decode_jpeg(data, strict=strict, **asked)
            return pixels
        except ValueError as error:
            reason = str(error)
        # Truncated data may end in the harmless message as well: there must be an end mark behind the pixels.
        if not any(text in reason for text in _HARMLESS) or data.rfind(b"\xff\xd9") < header.data_at:
            break
    because = f"the JPEG cannot be decoded: {reason}"
    lost = any(word in reason.lower() for word in _DAMAGE) or data.rfind(b"\xff\xd9") < header.data_at
    if lost or scaled not in ((0, 0), size):
        raise BadData(where, because)
    fell_back("JPEG", "a kind that only Pillow reads")
    # libjpeg-turbo's front is strict about markers and subsampling that others read: they decide.
    found = pillow.pixels(data, header, options.mode, where, because)
    flat = buffer.reshape(-1)[: found.size]
    flat[...] = found.reshape(-1)
    return flat.reshape(*size, options.channels)


def _other_pixels(data: bytes, header: Header, options: ImageOptions, where: str) -> np.ndarray:
    cv2 = _cv2()
    mode = "rgb" if _by_way_of_colours(data, header, options.mode) else options.mode
    flags = {"rgb": cv2.IMREAD_COLOR_RGB, "bgr": cv2.IMREAD_COLOR_BGR, "gray": cv2.IMREAD_GRAYSCALE}.get(mode)
    wanted = cv2.IMREAD_UNCHANGED if flags is None else flags | cv2.IMREAD_IGNORE_ORIENTATION
    if pillow.is_pillows(data, header):
        return pillow.pixels(data, header, options.mode, where, f"OpenCV does not read this kind of {header.kind}")
    data = png_without_animation(data) if header.kind == "PNG" else data
    because = f"the {header.kind} is damaged, cut short or of a kind that is not supported"
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), wanted)
    except cv2.error as error:
        pixels, because = None, f"the {header.kind} cannot be decoded: {error.err or error}"
    if pixels is None:
        if header.kind not in ("TIFF", "GIF", "BMP"):  # of these OpenCV has all kinds: what it refuses is damaged
            raise BadData(where, because)
        return pillow.pixels(data, header, options.mode, where, because)
    if mode != options.mode:
        changed: np.ndarray = cv2.cvtColor(pixels, cv2.COLOR_RGB2RGBA if options.mode == "rgba" else cv2.COLOR_RGB2GRAY)
        return changed
    return pixels if flags is not None else _to_rgba(pixels, header, where)


def _by_way_of_colours(data: bytes, header: Header, mode: str) -> bool:
    """Whether OpenCV has colours right, but not what is asked for.

    As RGBA it shows the numbers of a TIFF's palette, and the unused byte of a BMP as alpha. The grays of a PNG it
    weighs by the file's gamma.
    """
    if header.kind == "TIFF":
        return mode == "rgba"
    if header.kind == "BMP":
        return mode == "rgba" and not bmp_has_alpha(data)
    return header.kind == "PNG" and mode == "gray" and png_is_coloured(data)


def _to_rgba(pixels: np.ndarray, header: Header, where: str) -> np.ndarray:
    cv2 = _cv2()
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise BadData(where, f"the {header.kind} has {pixels.dtype} pixels, which have no meaning as 8-bit RGBA")
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    change = {1: cv2.COLOR_GRAY2RGBA, 3: cv2.COLOR_BGR2RGBA, 4: cv2.COLOR_BGRA2RGBA}[channels]
    converted: np.ndarray = cv2.cvtColor(pixels, change)
    return converted


def _turned(pixels: np.ndarray, orientation: int, room: Room) -> np.ndarray:
    """The image as EXIF asks for it to be shown."""
    if orientation == 1:
        return pixels
    cv2 = _cv2()
    shape = (pixels.shape[1], pixels.shape[0]) if orientation >= 5 else pixels.shape[:2]
    shape += pixels.shape[2:]
    out = room("turn", pixels.size).reshape(shape)
    if orientation in (2, 4):
        cv2.flip(pixels, 1 if orientation == 2 else 0, dst=out)
    elif orientation in (5, 7):
        cv2.transpose(pixels, dst=out)
        if orientation == 7:
            cv2.flip(out, -1, dst=out)
    else:
        codes = {3: cv2.ROTATE_180, 6: cv2.ROTATE_90_CLOCKWISE, 8: cv2.ROTATE_90_COUNTERCLOCKWISE}
        cv2.rotate(pixels, codes[orientation], dst=out)
    return out


def _fit(pixels: np.ndarray, out: np.ndarray, options: ImageOptions) -> None:
    """Crop or pad to the shape of `out`, and resize into it."""
    height, width = pixels.shape[:2]
    high, wide = out.shape[:2]
    if options.crop == "center":
        tall, broad = min(height, max(1, width * high // wide)), min(width, max(1, height * wide // high))
        top, left = (height - tall) // 2, (width - broad) // 2
        pixels = pixels[top : top + tall, left : left + broad]
    elif options.crop == "pad" and (height, width) != (high, wide):
        tall, broad = min(high, max(1, height * wide // width)), min(wide, max(1, width * high // height))
        top, left = (high - tall) // 2, (wide - broad) // 2
        out[:] = 0
        _resize(pixels, out[top : top + tall, left : left + broad], options)
        return
    _resize(pixels, out, options)


def _resize(pixels: np.ndarray, out: np.ndarray, options: ImageOptions) -> None:
    if pixels.shape[:2] == out.shape[:2]:
        out[:] = pixels.reshape(out.shape)
        return
    cv2 = _cv2()
    target = out[:, :, 0] if out.shape[2] == 1 else out
    flat = pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    how = getattr(cv2, _INTERPOLATIONS[options.interpolation])
    made = cv2.resize(flat, (out.shape[1], out.shape[0]), dst=target, interpolation=how)
    if made is not target and not np.shares_memory(made, target):
        target[:] = made  # OpenCV made an array of its own because it could not write into this one


class Scratch:
    """A thread's recycled buffers, by purpose. The run that first needed them has them on lease."""

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}
        self._lease: BytesOnLease | None = None

    def get(self, purpose: str, nbytes: int, buffers: Buffers) -> np.ndarray:
        """A flat buffer of exactly `nbytes`, paid by `buffers`: zero when it is new, else as it was left."""
        buffer = self._buffers.get(purpose)
        if buffer is None or len(buffer) < nbytes:
            self._buffers.pop(purpose, None)  # give the small one back before the large one is taken
            taken = -(-nbytes // 262144) * 262144
            self._pay(self.nbytes + taken, buffers)
            buffer = np.zeros(taken, np.uint8)
            self._buffers[purpose] = buffer
        return buffer[:nbytes]

    def trim(self) -> None:
        """Let go of buffers that are too large to keep."""
        for purpose, buffer in tuple(self._buffers.items()):  # a copy: another thread may clear meanwhile
            if buffer.nbytes > SCRATCH_NBYTES:
                self._buffers.pop(purpose, None)
                self._pay(self.nbytes)

    def clear(self) -> None:
        self._buffers.clear()
        self._pay(0)

    def _pay(self, nbytes: int, buffers: Buffers = NEW_MEMORY) -> None:
        if self._lease is not None:
            self._lease.resize(nbytes)
        elif nbytes:
            self._lease = buffers.lease(nbytes, who="decode")

    def __del__(self) -> None:
        if self._lease is not None:
            self._lease.close()

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in tuple(self._buffers.values()))


_local = threading.local()
_all: weakref.WeakSet[Scratch] = weakref.WeakSet()
_all_lock = threading.Lock()


def _after_fork() -> None:
    global _all_lock
    _all_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _scratch() -> Scratch:
    scratch: Scratch | None = getattr(_local, "scratch", None)
    if scratch is None:
        scratch = _local.scratch = Scratch()
        with _all_lock:
            _all.add(scratch)
    return scratch


def _room(buffers: Buffers) -> Room:
    """This thread's recycled buffers, paid by those of a run."""
    return functools.partial(_scratch().get, buffers=buffers)


def _new(_: str, nbytes: int) -> np.ndarray:
    """New memory, for an image that is handed out."""
    return np.empty(nbytes, np.uint8)


def scratch_nbytes() -> int:
    """Bytes that the decode buffers of all threads hold now; a thread's are freed when it ends."""
    with _all_lock:
        return sum(scratch.nbytes for scratch in _all)


@functools.cache
def _cv2() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra(what="Decoding images", extra="images") from error
    cv2.setNumThreads(0)  # the engine owns the cores
    # A damaged file is reported once, as BadData; OpenCV would write up to four lines of its own to the terminal.
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    return cv2


@functools.cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError as error:
        raise MissingExtra(what="Decoding JPEG images", extra="images") from error
    return simplejpeg
