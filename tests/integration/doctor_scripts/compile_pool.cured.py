"""With one thread for compiling there is no pool: the process compiles by itself."""

import torch
import torch._inductor.config

torch._inductor.config.compile_threads = 1  # or TORCHINDUCTOR_COMPILE_THREADS=1


@torch.compile(backend="aot_eager")
def step(x):
    return (x.sin() + x.cos()).sum()


print("compiled", float(step(torch.ones(1_000))))
