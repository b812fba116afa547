"""A list that every worker gets its own copy of."""

import time

from joblib import Parallel, delayed


def work(rows, seed):
    time.sleep(0.5)
    return len(rows) + seed


if __name__ == "__main__":
    rows = [float(i) for i in range(3_000_000)]
    print("sum", sum(Parallel(n_jobs=2, batch_size=1, pre_dispatch=2)(delayed(work)(rows, seed) for seed in range(6))))
