"""What a process holds outside of all leases, by kind.

Covers: data of libraries, stacks of threads, Python's small objects, blocks of malloc in use, and what malloc keeps.
Does not cover: leases and named holders (account.py), other processes of the tree.

One pass over /proc/self/smaps (1 to 20 ms, by the number of mappings) and glibc's own books (`mallinfo2`). Kinds are
found from what the kernel and glibc report: a mapping of a file is a library's, one behind a guard page is a stack, one
of Python's arena size is Python's. What is left of the private mappings belongs to other allocators: Arrow's pool and
those of frameworks, which keep no books that can be read from here.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

PYTHON_ARENA = 1 << 20
"""Python 3.10 and later take memory for small objects in pieces of this size."""
LIBRARIES, STACKS, PYTHON = "interpreter and libraries", "threads' stacks", "Python objects"
IN_USE, KEPT, POOLS = "arrays and objects from malloc", "freed, kept by malloc", "other allocators"


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of the address space with its private bytes in memory."""

    nbytes: int
    guarded: bool
    """The mapping right below it may not be touched."""
    name: str
    anonymous: int


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
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
            mappings = parse(file.read())
    except OSError:
        return {}
    return split(mappings, malloc_books(), leased)


def split(mappings: list[Mapping], books: tuple[int, int, int] | None, leased: int) -> dict[str, int]:
    """Private bytes by kind. `books` are glibc's: bytes in its heaps, in blocks of their own, and free in its heaps."""
    found = dict.fromkeys((LIBRARIES, STACKS, PYTHON, IN_USE, KEPT, POOLS), 0)
    rest = 0
    for mapping in mappings:
        if mapping.name.startswith("[stack") or (mapping.guarded and not mapping.name):
            found[STACKS] += mapping.anonymous
        elif mapping.name.startswith("/") and not mapping.name.startswith(("/dev/shm", "/memfd:", "/SYSV")):
            found[LIBRARIES] += mapping.anonymous
        elif not mapping.name and mapping.nbytes and mapping.nbytes % PYTHON_ARENA == 0 and mapping.nbytes < 1 << 26:
            found[PYTHON] += mapping.anonymous
        else:
            rest += mapping.anonymous
    if books is None:
        found[POOLS] = max(0, rest - leased)
        return found
    heaps, blocks, free = books
    found[KEPT] = min(free, rest)
    found[IN_USE] = max(0, min(rest - found[KEPT], heaps + blocks - free) - leased)
    found[POOLS] = max(0, rest - found[KEPT] - found[IN_USE] - leased)
    return found


def parse(text: str) -> list[Mapping]:
    """The mappings of an smaps table."""
    found: list[Mapping] = []
    nbytes = anonymous = 0
    guard_end, begun, guarded, name = "", False, False, ""
    for line in text.splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            if begun:
                found.append(Mapping(nbytes, guarded, name, anonymous))
            start, _, end = head.partition("-")
            words = rest.split(None, 4)
            nbytes, anonymous, begun = int(end, 16) - int(start, 16), 0, True
            guarded, name = start == guard_end, words[4].strip() if len(words) > 4 else ""
            guard_end = end if words[0].startswith("---") else ""
        elif head == "Anonymous:":
            anonymous = int(rest.split()[0]) * 1024
    return [*found, Mapping(nbytes, guarded, name, anonymous)] if begun else found


def malloc_books() -> tuple[int, int, int] | None:
    """Bytes that glibc has in heaps, in blocks of their own, and free in its heaps; None for another libc."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return None
    ask.restype = _Mallinfo2
    told = ask()
    return int(told.arena), int(told.hblkhd), int(told.fordblks)
