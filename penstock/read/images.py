"""`read_images`: folders, globs, lists and manifests of image files.

Covers: checking the call and choosing how the files are found.
Does not cover: finding (sources/listing/sample_files.py), reading and decoding (sources/images/source.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from penstock.core.errors import InvalidInput
from penstock.core.source import OnError
from penstock.dataset import Dataset
from penstock.plan.prepare import Layout, Values
from penstock.read.array_columns import either
from penstock.sources.images.decode import MAX_PIXELS, Crop, ImageOptions, Mode
from penstock.sources.images.manifest import list_manifest
from penstock.sources.images.source import SUFFIXES, ImageSource, LabelFunction
from penstock.sources.listing.packed_names import PathIndex
from penstock.sources.listing.sample_files import FileRules, list_files
from penstock.sources.storage import files as storage

Labels = Literal["folder"] | LabelFunction | None


def read_images(
    paths: storage.Paths,
    *,
    size: int | tuple[int, int] | None = None,
    crop: Crop | None = None,
    mode: Mode = "rgb",
    label: Labels = "folder",
    labels: Labels = "folder",
    classes: Sequence[str] | None = None,
    path_column: str = "path",
    label_column: str = "label",
    root: storage.PathLike | None = None,
    dtype: Any = "uint8",
    scale: float = 1.0,
    mean: Values = 0.0,
    std: Values = 1.0,
    layout: Layout = "HWC",
    interpolation: str = "linear",
    fast: bool = False,
    scaled: bool = False,
    max_pixels: int = MAX_PIXELS,
    on_error: Literal["raise", "skip"] = "raise",
    max_errors: float | None = None,
) -> Dataset:
    """Read image files as samples `(image, label)`, or bare images where there are no labels.

    `paths` is a folder of class folders, a folder of images, a glob, a list of files, or a CSV file that names them in
    `path_column` and `label_column` (relative to `root`, else to the CSV file); all may be remote. JPEG, PNG, WebP,
    BMP, GIF (first frame) and TIFF (first page) become 8-bit arrays of height x width x channels.

    `size` is (height, width): images are stretched to it, or cut with crop="center", or framed with crop="pad".
    `mode` is "rgb", "bgr", "gray" or "rgba". dtype="float32" gives `(pixels * scale - mean) / std`, with a mean and std
    for all channels or for each, computed as images are decoded into their batch; layout="CHW" puts channels first
    (short for `.normalise(...)`). `label` (or `labels`) numbers class folders by name ("folder", or in the order of
    `classes`), calls a function with the path, or is None. `fast` decodes JPEGs a little less exactly, `scaled` decodes
    them at 1/2, 1/4 or 1/8 first: faster, and different pixels. Images of more than `max_pixels` are refused by name.
    on_error="skip" leaves damaged images out, up to `max_errors` (a count, or below 1 a fraction of the rows).

    >>> import os, tempfile, cv2, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> os.mkdir(f"{folder}/cat"), os.mkdir(f"{folder}/dog")
    (None, None)
    >>> all(cv2.imwrite(f"{folder}/{name}/0.png", np.zeros((30, 40, 3), np.uint8)) for name in ("cat", "dog"))
    True
    >>> dataset = read_images(folder, size=(24, 24))
    """
    labels = either("label", label, "labels", labels, "folder")
    if not (labels is None or labels == "folder" or callable(labels)):
        raise InvalidInput(f"label must be 'folder', None or a function of the path, not {labels!r}.")
    options = ImageOptions(_height_width(size), crop or "none", mode, interpolation, fast, scaled, max_pixels)
    if isinstance(paths, (str, os.PathLike)) and os.fspath(paths).lower().endswith(".csv"):
        files = _named_in_csv(paths, labels, classes, (path_column, label_column), root)
    else:
        files = _listed(paths, labels, classes, root)
    name = os.fspath(paths) if isinstance(paths, (str, os.PathLike)) else f"{len(files)} files"
    function = labels if callable(labels) else None
    policy = OnError(on_error, max_errors)
    found = Dataset.of(ImageSource(files, options, label_function=function, on_error=policy, name=name))
    changed = _normalised(dtype, scale, mean, std, layout)
    return found if changed is None else found.normalise(**changed)


def _normalised(dtype: Any, scale: float, mean: Values, std: Values, layout: Layout) -> dict[str, Any] | None:
    """What `normalise` is called with, or None where 8-bit pixels stay as they are."""
    kind = np.dtype(dtype)
    if kind == np.float32:
        return {"scale": scale, "mean": mean, "std": std, "layout": layout}
    if kind != np.uint8:
        raise InvalidInput(f"dtype must be 'uint8' or 'float32', not {dtype!r}.")
    if (scale, layout) != (1.0, "HWC") or np.any(np.asarray(mean)) or np.any(np.asarray(std) != 1):
        raise InvalidInput("scale, mean, std and layout are for dtype='float32'.")
    return None


def _named_in_csv(
    path: storage.PathLike,
    labels: Labels,
    classes: Sequence[str] | None,
    columns: tuple[str, str],
    root: storage.PathLike | None,
) -> PathIndex:
    if classes is not None:
        raise InvalidInput("classes= orders class folders; a manifest's labels are taken as they are written.")
    label_column = columns[1] if labels == "folder" else None
    where = None if root is None else os.fspath(root)
    return list_manifest(os.fspath(path), path_column=columns[0], label_column=label_column, root=where)


def _listed(
    paths: storage.Paths, labels: Labels, classes: Sequence[str] | None, root: storage.PathLike | None
) -> PathIndex:
    if root is not None:
        raise InvalidInput("root= is for the paths in a CSV manifest; write folders and globs in full.")
    if not isinstance(paths, (str, os.PathLike)) and not len(paths):
        raise InvalidInput("No image was given: the list is empty.")
    fixed = None if classes is None else tuple(classes)
    return list_files(paths, FileRules(SUFFIXES, by_folder=labels == "folder", classes=fixed))


def _height_width(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and 0 < n <= 65535 for n in pair):
        raise InvalidInput(f"size must be (height, width) in pixels, not {size!r}.")
    return pair
