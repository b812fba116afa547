"""Pillow opens a folder of pictures, and a dictionary by file name keeps all their pixels."""

from pathlib import Path

import numpy as np
from PIL import Image


def load_gallery(folder):
    gallery = {}
    for path in sorted(Path(folder).iterdir()):
        with Image.open(path) as picture:
            gallery[path.name] = np.asarray(picture.convert("RGB"))
    return gallery


gallery = load_gallery("pictures")
print("pictures", len(gallery), sum(int(p.mean()) for p in gallery.values()))
