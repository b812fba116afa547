"""Out-of-memory errors are told from other errors, through causes, by type before text."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from penstock.core.errors import OutOfMemory
from penstock.guard.recovery.classify import asked_nbytes, classify

CPU_TEXT = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 419430400 bytes. Error code 12 (Cannot allocate memory)"
)


def raised_from(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(CPU_TEXT),
        RuntimeError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 10 GiB"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes."),
        RuntimeError("INTERNAL: Error dispatching computation: Out of memory"),
        RuntimeError("\x1b[1mException encountered\x1b[0m: \x1b[31mOOM when allocating tensor with shape[64,512]"),
        ValueError("RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes."),
        ValueError("INTERNAL: CpuCallback error calling callback: Traceback: MemoryError: no room"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        raised_from(ValueError("Exception encountered when calling Dense.call()"), MemoryError("no")),
        ExceptionGroup("two", [ValueError("x"), MemoryError()]),
    ],
    ids=lambda e: str(e)[:40],
)
def test_is_oom(error):
    assert classify(error) is not None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the story of how we ran out of memory"),
        RuntimeError("shapes do not match"),
        KeyError("exp_avg"),
        OSError(errno.ENOENT, "No such file"),
        RuntimeError("could not create a primitive"),
        OutOfMemory("given up", phase="forward", micro=1),
        raised_from(OutOfMemory("given up", phase="forward", micro=1), MemoryError()),
    ],
    ids=lambda e: str(e)[:40],
)
def test_is_not_oom(error):
    assert classify(error) is None


def test_suppressed_context_is_not_searched():
    error = ValueError("handled")
    error.__context__ = MemoryError()
    assert classify(error) is not None
    error.__suppress_context__ = True
    assert classify(error) is None


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("text", ["could not create a primitive", "INTERNAL: YNNPACK operation failed: error"])
def test_disguised_error_counts_only_when_memory_is_short(short, text):
    found = classify(RuntimeError(text), memory_is_short=lambda: short)
    assert (found is not None) == short


def test_real_numpy_error_tells_its_size():
    with pytest.raises(MemoryError) as caught:
        np.empty((1 << 46,), np.float32)
    found = classify(caught.value)
    assert found is not None and found.framework == "host" and found.asked_nbytes == 1 << 48


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (CPU_TEXT, 419430400),
        ("Tried to allocate 2.50 GiB. GPU", int(2.5 * 2**30)),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes.", 12),
        ("Out of memory while trying to allocate 3.14GiB.", int(3.14 * 2**30)),
        ("nothing", None),
    ],
)
def test_asked_nbytes(text, nbytes):
    assert asked_nbytes(text) == nbytes


def test_the_line_that_speaks_of_memory_is_told():
    graph = 'Graph execution error:\n\nDetected at node step defined at\n  File "/x/memory.py", line 3\n'
    assert (
        classify(RuntimeError(graph + "Out of memory allocating 96 bytes.")).text
        == "Out of memory allocating 96 bytes."
    )
    assert classify(MemoryError("no room\nmore")).text == "no room"


def test_result_holds_no_exception():
    found = classify(RuntimeError(CPU_TEXT))
    assert found is not None
    assert all(isinstance(getattr(found, name), (str, int)) for name in found.__slots__)
