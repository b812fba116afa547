"""The first torch.compile on a machine with sixteen processors and an accelerator: a pool of compilers starts."""

import torch
import torch._inductor.config
from torch._inductor.async_compile import AsyncCompile

torch._inductor.config.compile_threads = 16  # what such a machine gives


@torch.compile(backend="aot_eager")  # no accelerator here: the pool is started as inductor's import of Triton does
def step(x):
    return (x.sin() + x.cos()).sum()


AsyncCompile.warm_pool()
AsyncCompile.wait_pool_ready(180)
pool = AsyncCompile.process_pool()
for number in range(64):
    pool.submit(sorted, list(range(1_000 + number))).result(120)
print("compiled", float(step(torch.ones(1_000))))
