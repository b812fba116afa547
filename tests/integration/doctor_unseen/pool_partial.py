"""A table is bound into the function that a pool of processes maps over folds."""

import multiprocessing as mp
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import pandas as pd


def evaluate_fold(df, cfg, fold):
    part = df[df["fold"] == fold]
    time.sleep(cfg["settle"])
    w, *_ = np.linalg.lstsq(part.iloc[:, :10].to_numpy(), part["y"].to_numpy(), rcond=None)
    return fold, float(np.abs(w).sum())


def main():
    rng = np.random.default_rng(0)
    df = pd.DataFrame(rng.standard_normal((500_000, 20)), columns=[f"f{i}" for i in range(20)])
    df["y"] = rng.standard_normal(len(df))
    df["fold"] = rng.integers(0, 8, len(df))
    job = partial(evaluate_fold, df, {"settle": 1.0})
    with ProcessPoolExecutor(max_workers=4, mp_context=mp.get_context("spawn")) as ex:
        for fold, score in ex.map(job, range(8)):
            print(fold, score, flush=True)


if __name__ == "__main__":
    main()
