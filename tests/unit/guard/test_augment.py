"""Augmentations: right values, in place, the same whenever a batch is read again."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.core.errors import InvalidInput
from penstock.guard.augment import brightness, crop, flip, mixup, normalise


def images(dtype=np.uint8, rows=12):
    return np.random.default_rng(0).integers(0, 256, (rows, 8, 10, 3)).astype(dtype)


def test_flip_mirrors_about_half_of_the_images_in_place():
    x = images(rows=64)
    before = x.copy()
    out = flip()(x)
    assert np.shares_memory(out, x)
    same = [np.array_equal(a, b) for a, b in zip(out, before, strict=True)]
    mirrored = [np.array_equal(a, b[:, ::-1]) for a, b in zip(out, before, strict=True)]
    assert all(s != m for s, m in zip(same, mirrored, strict=True)) and 16 < sum(mirrored) < 48


def test_crop_is_a_view_inside_the_image():
    x = images()
    out = crop(5, 6)(x)
    assert out.shape == (12, 5, 6, 3) and np.shares_memory(out, x)
    with pytest.raises(InvalidInput, match="cannot be cropped"):
        crop(9, 6)(x)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_brightness_scales_each_image_and_saturates(dtype):
    x = images(dtype)
    before = x.astype(np.float64)
    out = brightness(0.5)(x)
    assert out is x and out.dtype == dtype
    for new, old in zip(out.astype(np.float64), before, strict=True):
        clear = (old > 20) & (new < 250) if dtype == np.uint8 else old > 20
        factors = new[clear] / old[clear]
        assert factors.min() >= 0.45 and factors.max() <= 1.55
        assert factors.std() < (0.02 if dtype == np.uint8 else 1e-5)


def test_normalise_in_place_for_float32_and_one_copy_otherwise():
    x = images(np.float32)
    expected = (x - np.float32([1, 2, 3])) / np.float32([2, 4, 8])
    out = normalise([1, 2, 3], [2, 4, 8])(x)
    assert out is x and np.allclose(out, expected)
    assert normalise(0, 1)(images()).dtype == np.float32


def test_mixup_blends_samples_and_targets_alike():
    x, y = images(np.float32), np.eye(12, dtype=np.float32)
    before = x.copy()
    out_x, out_y = mixup(1.0)((x, y))
    assert out_x is x and out_y is y
    share = out_y[0, 0]
    assert np.allclose(out_y, share * np.eye(12) + (1 - share) * np.roll(np.eye(12), 1, axis=1), atol=1e-6)
    assert np.allclose(out_x, share * before + (1 - share) * np.roll(before, -1, axis=0), rtol=1e-4)
    with pytest.raises(InvalidInput, match="one-hot"):
        mixup()((x, np.arange(12)))


def test_same_batch_same_choice_other_batch_other_choice():
    a, b = images(rows=32), images(rows=32)
    assert np.array_equal(flip(seed=3)(a), flip(seed=3)(b))
    other = images(rows=32)
    assert not np.array_equal(flip(seed=4)(other), a)


def test_tuples_and_dicts_keep_their_other_parts():
    y = np.arange(12)
    x, kept = flip()((images(), y))
    assert kept is y and x.shape == (12, 8, 10, 3)
    out = crop(4, 4)({"image": images(), "label": y})
    assert out["image"].shape == (12, 4, 4, 3) and out["label"] is y
    with pytest.raises(InvalidInput, match="no column 'photo'"):
        crop(4, 4, key="photo")({"image": images()})
