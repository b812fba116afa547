"""Decodes every picture into one list."""

import glob

import cv2
import numpy as np

pictures = []
for name in sorted(glob.glob("pictures/*.png")):
    picture = cv2.imread(name)
    pictures.append(picture)
print("mean", np.mean([p.mean() for p in pictures]))
