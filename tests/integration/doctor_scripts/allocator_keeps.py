"""Frees a great many small blocks; some above them stay."""

import ctypes
import time

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
blocks = []
for _ in range(3_000):
    block = libc.malloc(100_000)
    libc.memset(block, 1, 100_000)
    blocks.append(block)
for place, block in enumerate(blocks):
    if place % 20:  # every twentieth stays in use, so that malloc cannot give back what is below it
        libc.free(block)
print("freed", flush=True)
time.sleep(1.5)
big = bytearray(180_000_000)
time.sleep(0.5)
print("got", len(big))
