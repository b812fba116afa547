"""TFRecord files: 40 floats a record -> batches of 1,024 x 40 float32; JPEG records -> 32 x 224 x 224 x 3 uint8.

Covers: penstock, tf.data as documented and vectorised by hand.
Does not cover: compressed files, sequences.
"""

from __future__ import annotations

from typing import Any

from benchmarks.child import Build
from benchmarks.rows import BATCH, BLOCK, FEATURES, TF_BLOCK, race_table, tf_rows

IMAGES, SIDE = 32, 224
SHUFFLED_IMAGES = 1000


def penstock(path: str) -> Build:
    """The quick start, repeated; checksums are checked, as tf.data does."""
    import penstock as ps

    return lambda: (
        ps.read_tfrecords(f"{path}/*.tfrecord", label="y").shuffle(seed=1).batch(BATCH, drop_last=True).repeat()
    )


def _features(tf: Any) -> dict[str, Any]:
    return {"x": tf.io.FixedLenFeature((FEATURES,), tf.float32), "y": tf.io.FixedLenFeature((), tf.int64)}


def _records(tf: Any, path: str) -> Any:
    """Records of several files at a time, in any order."""
    files = tf.data.Dataset.list_files(f"{path}/*.tfrecord", shuffle=True).repeat()
    return files.interleave(
        lambda file: tf.data.TFRecordDataset(file, buffer_size=4 << 20), cycle_length=4, block_length=64,
        num_parallel_calls=tf.data.AUTOTUNE, deterministic=False,
    )  # fmt: skip


def tf_documented(path: str) -> Build:
    """One record at a time, as the TFRecord guide parses them."""
    import tensorflow as tf

    def parse(record: Any) -> tuple[Any, Any]:
        found = tf.io.parse_single_example(record, _features(tf))
        return found["x"], found["y"]

    def build() -> Any:
        shuffled = _records(tf, path).shuffle(BLOCK)
        parsed = shuffled.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        return parsed.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    return build


def tf_batched(path: str) -> Build:
    """Records shuffled, batched, then parsed a batch at a time, as the performance guide advises."""
    import tensorflow as tf

    def parse(records: Any) -> tuple[Any, Any]:
        found = tf.io.parse_example(records, _features(tf))
        return found["x"], found["y"]

    def build() -> Any:
        batched = _records(tf, path).shuffle(BLOCK).batch(BATCH, drop_remainder=True)
        return batched.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    return build


def tf_blocks(path: str) -> Build:
    """Whole blocks parsed at once, each shuffled as a tensor: no shuffle of single records."""
    import tensorflow as tf

    def parse(records: Any) -> Any:
        found = tf.io.parse_example(records, _features(tf))
        return tf_rows(tf, found["x"], found["y"])

    def build() -> Any:
        blocks = _records(tf, path).batch(TF_BLOCK, drop_remainder=True).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        return blocks.unbatch().prefetch(tf.data.AUTOTUNE)

    return build


def penstock_jpeg(path: str) -> Build:
    """Pictures in records; the frame index makes the shuffle exact."""
    import cv2  # noqa: F401
    import simplejpeg  # noqa: F401

    import penstock as ps

    def build() -> Any:
        found = ps.read_tfrecords(f"{path}/*.tfrecord", label="label", images="image", size=(SIDE, SIDE))
        return found.shuffle(seed=1).batch(IMAGES, drop_last=True).repeat()

    return build


def tf_jpeg(path: str) -> Build:
    """Records shuffled, then parsed, decoded and resized on AUTOTUNE."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}

    def parse(record: Any) -> tuple[Any, Any]:
        found = tf.io.parse_single_example(record, features)
        picture = tf.image.resize(tf.io.decode_jpeg(found["image"], channels=3), (SIDE, SIDE))
        return tf.cast(picture, tf.uint8), found["label"]

    def build() -> Any:
        parsed = _records(tf, path).shuffle(SHUFFLED_IMAGES).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        return parsed.batch(IMAGES, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    return build


CONTESTANTS = {
    "floats": {
        "penstock": penstock,
        "tf.data parse_single_example": tf_documented,
        "tf.data batch, parse_example": tf_batched,
        "tf.data blocks, parse_example": tf_blocks,
    },
    "jpeg": {"penstock": penstock_jpeg, "tf.data AUTOTUNE": tf_jpeg},
}


def run(options: Any) -> None:
    """Both races."""
    _run_floats(options)
    _run_jpeg(options)


def _run_floats(options: Any) -> None:
    from benchmarks import data, report

    where = report.machine()
    path = data.tfrecord(2, 2) if options.quick else data.tfrecord(8, 5)
    names = list(CONTESTANTS["floats"])
    scores = race_table(__name__, "floats", path, names, options)
    verdicts = [
        report.at_least(scores, "penstock", names[2:], 3.5, "tf.data's best hand-vectorised form"),
        report.at_least(scores, "penstock", names[1:2], 8, "tf.data's documented form"),
        report.no_more_memory(scores, "penstock", names[1:]),
    ]
    about = (
        "8 TFRecord files, 1,966,080 tf.train.Example records of 40 floats and an integer; shuffled batches of 1,024, "
        "x (1024, 40) float32 and y; checksums checked by all; warm page cache."
    )
    report.write_race(
        "tfrecord", "TFRecord of floats to batches", about, "rows", scores, verdicts, where, quick=options.quick
    )


def _run_jpeg(options: Any) -> None:
    from benchmarks import data, pictures, report
    from benchmarks.harness import Race, race

    where = report.machine()
    path = data.tfrecord_images(64 if options.quick else 1000)
    names = list(CONTESTANTS["jpeg"])
    shape = (IMAGES, SIDE, SIDE, 3)
    scores = race(Race(__name__, "jpeg", str(path), names, shape, "uint8", options.turns(4), **pictures.times(options)))
    verdicts = [
        report.at_least(scores, "penstock", names[1:], 1.25, "tf.data"),
        report.no_more_memory(scores, "penstock", names[1:]),
    ]
    about = (
        "The pictures of the images benchmark (JPEG 500 x 375) in 8 TFRecord files; shuffled batches of 32, resized to "
        "224 x 224, uint8; warm page cache."
    )
    report.write_race(
        "tfrecord_jpeg", "TFRecord of JPEG to batches", about, "images", scores, verdicts, where, quick=options.quick
    )
