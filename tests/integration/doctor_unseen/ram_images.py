"""The data set decodes everything in a pool of threads when it is made, as detectors' loaders do with cache="ram"."""

from multiprocessing.pool import ThreadPool
from pathlib import Path

import cv2
import torch
from torch.utils.data import DataLoader, Dataset


class LoadImagesAndLabels(Dataset):
    def __init__(self, path, img_size=640, cache_images=True):
        self.img_size = img_size
        self.im_files = sorted(str(f) for f in Path(path).rglob("*.*") if f.suffix.lower() in {".jpg", ".png"})
        n = len(self.im_files)
        self.ims, self.im_hw = [None] * n, [None] * n
        if cache_images:
            gb = 0
            results = ThreadPool(4).imap(self.load_image, range(n))
            for i, (im, hw) in enumerate(results):
                self.ims[i], self.im_hw[i] = im, hw
                gb += im.nbytes
            print(f"cached {gb / 1e9:.2f} GB")

    def load_image(self, i):
        im = self.ims[i]
        if im is None:
            im = cv2.imread(self.im_files[i])
            h, w = im.shape[:2]
            return im, (h, w)
        return im, self.im_hw[i]

    def __len__(self):
        return len(self.im_files)

    def __getitem__(self, i):
        im, _ = self.load_image(i)
        im = cv2.resize(im, (self.img_size, self.img_size))
        return torch.from_numpy(im).permute(2, 0, 1).float() / 255


loader = DataLoader(LoadImagesAndLabels("pictures"), batch_size=4)
for _ in range(2):
    for imgs in loader:  # noqa: B007
        pass
print("done")
