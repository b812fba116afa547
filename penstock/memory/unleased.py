"""What a process holds outside of all leases, by kind.

Covers: data of libraries, code compiled at run time, stacks of threads, Python's small objects, blocks of malloc in
use, what malloc keeps, Arrow's pool.
Does not cover: leases and named holders (account.py), other processes of the tree.

One pass over /proc/self/smaps (1 to 20 ms, by the number of mappings) and glibc's own books (`mallinfo2`). Kinds are
found from what the kernel and glibc report: a mapping of a file is a library's, one behind a guard page is a stack, an
executable one without a file is code. Heaps are the break and what begins where glibc puts its arenas; of their pages
those that glibc has not given out are kept. Python's small objects are counted and their bytes estimated. Leases are
mappings of their own or Arrow's, so they are taken off the rest first, and off malloc's blocks if there is no rest.
What is left then belongs to allocators that keep no books that can be read from here.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

OBJECT_NBYTES = 100
"""What a small object takes of Python's own heap, with gaps: 86 to 112 bytes from a bare interpreter to a training in
torch (measured on 3.11; the heap itself cannot be told from other mappings that the kernel joins with it)."""
ARENA = 1 << 26
"""Where glibc's heaps of threads begin, and how much address space each has."""
STACK_MOST = 1 << 24
"""A larger mapping behind a guard page is a stack that the kernel has joined with what lies above it."""
LIBRARIES, STACKS, PYTHON = "interpreter and libraries", "threads' stacks", "Python objects"
IN_USE, KEPT, POOLS = "arrays and objects from malloc", "freed, kept by malloc", "other allocators"
CODE, ARROW = "code compiled at run time", "Arrow's pool"


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of the address space with its private bytes in memory."""

    nbytes: int
    guarded: bool
    """The mapping right below it may not be touched."""
    name: str
    anonymous: int
    code: bool = False
    heap: bool = False
    """One of malloc's heaps."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def unleased(leased: int) -> dict[str, int]:
    """Bytes of this process by kind, `leased` ones of malloc's taken out. Empty where the system does not report it."""
    if sys.platform != "linux":
        return {}
    before = malloc_books()
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
            table = file.read()
    except OSError:
        return {}
    books = malloc_books()
    if before is not None and books is not None:  # a framework's thread may let go of much while the table is written
        books = max(before, books, key=lambda told: told[1])
    return split(parse(table), books, leased, arrow=arrow_nbytes(), objects=python_nbytes())


def split(
    mappings: list[Mapping], books: tuple[int, int, int] | None, leased: int, *, arrow: int = 0, objects: int = 0
) -> dict[str, int]:
    """Private bytes by kind. `books` are glibc's: bytes in its heaps, in blocks of their own, and free in its heaps."""
    found = dict.fromkeys((LIBRARIES, CODE, STACKS, PYTHON, IN_USE, KEPT, ARROW, POOLS), 0)
    rest = heaps = 0
    for mapping in mappings:
        stack = mapping.guarded and not mapping.name and not mapping.heap and mapping.nbytes <= STACK_MOST
        if mapping.name.startswith("[stack") or stack:
            found[STACKS] += mapping.anonymous
        elif mapping.name.startswith("/") and not mapping.name.startswith(("/dev/shm", "/memfd:", "/SYSV")):
            found[LIBRARIES] += mapping.anonymous
        elif mapping.code:
            found[CODE] += mapping.anonymous
        elif mapping.heap:
            heaps += mapping.anonymous
        else:
            rest += mapping.anonymous
    if books is None:
        books = heaps, 0, 0
    size, blocks, free = books
    in_heaps = min(heaps, max(0, size - free))
    found[KEPT] = heaps - in_heaps
    found[PYTHON] = min(objects, rest)
    rest -= found[PYTHON]
    outside = min(leased, rest)
    rest -= outside
    in_blocks = min(rest, blocks)  # of which not every page need have been touched, so it comes last
    found[IN_USE] = in_heaps + in_blocks - min(in_heaps + in_blocks, leased - outside)
    found[ARROW] = min(max(0, arrow - outside), rest - in_blocks)
    found[POOLS] = rest - in_blocks - found[ARROW]
    return found


def python_nbytes() -> int:
    """What small objects take, by their number."""
    return sys.getallocatedblocks() * OBJECT_NBYTES


def arrow_nbytes() -> int:
    """What Arrow holds by its own books; 0 if nobody has loaded it."""
    arrow = sys.modules.get("pyarrow")
    return 0 if arrow is None else int(arrow.total_allocated_bytes())


def parse(text: str) -> list[Mapping]:
    """The mappings of an smaps table."""
    found: list[Mapping] = []
    nbytes = anonymous = 0
    guard_end, begun, guarded, name, code, heap = "", False, False, "", False, False
    for line in text.splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            if begun:
                found.append(Mapping(nbytes, guarded, name, anonymous, code, heap))
            start, _, end = head.partition("-")
            words = rest.split(None, 4)
            nbytes, anonymous, begun = int(end, 16) - int(start, 16), 0, True
            guarded, name = start == guard_end, words[4].strip() if len(words) > 4 else ""
            guard_end = end if words[0].startswith("---") else ""
            code = "x" in words[0] and not name
            arena = not name and int(start, 16) % ARENA == 0 and nbytes <= ARENA  # below may lie the rest of another
            heap = name == "[heap]" or (arena and words[0].startswith("rw"))
        elif head == "Anonymous:":
            anonymous = int(rest.split()[0]) * 1024
    return [*found, Mapping(nbytes, guarded, name, anonymous, code, heap)] if begun else found


def malloc_books() -> tuple[int, int, int] | None:
    """Bytes that glibc has in heaps, in blocks of their own, and free in its heaps; None for another libc."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return None
    ask.restype = _Mallinfo2
    told = ask()
    return int(told.arena), int(told.hblkhd), int(told.fordblks)
