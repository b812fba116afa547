"""Which names of the script hold the most memory.

Covers: arrays, tensors, tables and containers that are reached from frames and modules of the script, their size,
length and where they live.
Does not cover: memory that no Python name reaches (the allocator, a framework's buffers).

Only attributes of known types are read: code of the script never runs here. The walk has a deadline, since it runs in
the script's own time.
"""

import sys
import time
from collections import deque

from penstock_inside.journal import is_users

DEADLINE_S = 0.04
DEEPEST = 5
SAMPLE = 24
KEEP = 24
SMALLEST = 1 << 18
MOST_OPERATIONS = 2_000
NESTED = 3
MOST_LAYERS = 64


class NameWalk:
    """One walk over names; results by size."""

    def __init__(self, remembered: "list[tuple[str, object]]" = ()) -> None:
        self.remembered = remembered
        self.end_s = time.monotonic() + DEADLINE_S
        self.seen = set()  # type: set[int]
        self.found = []  # type: list[dict[str, object]]

    def run(self) -> "list[dict[str, object]]":
        queue = []  # type: list[tuple[str, str, object, int]]
        for name, reference in self.remembered:
            queue.append((name, "", reference(), 0))
        for name, where, value in _roots():
            queue.append((name, where, value, 0))
        for name, where, value, depth in queue:  # grows while it is walked
            if time.monotonic() > self.end_s:
                break
            if id(value) in self.seen:
                continue
            self.seen.add(id(value))
            self._measure(name, where, value)
            if depth < DEEPEST:
                queue.extend((name + step, where, child, depth + 1) for step, child in _children(value))
        self.found.sort(key=lambda item: -int(item["nbytes"]))
        return self.found[:KEEP]

    def _measure(self, name: str, where: str, value: object) -> None:
        nbytes, detail = weigh(value)
        length = len(value) if isinstance(value, (list, dict, set, tuple, deque)) else None
        if detail.startswith("grad_fn"):
            length = graph_length(value)
        if nbytes < SMALLEST and (length is None or length < 64) and not detail.startswith("cache"):
            return
        self.found.append(
            {"name": name, "where": where, "type": _kind(value), "nbytes": nbytes, "len": length, "detail": detail}
        )


def graph_length(tensor: object) -> int:
    """How many operations a tensor's graph holds, as far as `MOST_OPERATIONS`: a graph that grows is never freed."""
    seen, pending = set(), [tensor.grad_fn]
    while pending and len(seen) < MOST_OPERATIONS:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending.extend(after for after, _ in node.next_functions)
    return len(seen)


def _kind(value: object) -> str:
    return "{}.{}".format(type(value).__module__.split(".")[0], type(value).__name__)


def _roots() -> "list[tuple[str, str, object]]":
    """Names in frames (innermost first) and in modules of the script."""
    found = []  # type: list[tuple[str, str, object]]
    frame = None
    for frame in list(sys._current_frames().values()):
        while frame is not None:
            code = frame.f_code
            if is_users(code.co_filename) and code.co_name != "<module>":
                where = "%s:%d %s" % (code.co_filename, frame.f_lineno, code.co_name)
                values = frame.f_locals
                found.extend((name, where, value) for name, value in list(values.items()))
                if _is_snapshot(code):
                    values.clear()
            frame = frame.f_back
    del frame  # one of them is our own: a name for it is a cycle that would keep the script's arrays alive
    for module in list(sys.modules.values()):
        filename = getattr(module, "__file__", None) or (
            "" if getattr(module, "__name__", "") != "__main__" else "main"
        )
        if filename and (filename == "main" or is_users(filename)) and not str(module.__name__).startswith("penstock"):
            for name, value in list(vars(module).items()):
                if not name.startswith("__"):
                    found.append((name, filename, value))
    return found


def _is_snapshot(code: object) -> bool:
    """Whether f_locals is a copy that only we have asked for.

    Before Python 3.13 the frame keeps that copy, and with it arrays that the function has let go since.
    """
    return (
        sys.version_info < (3, 13)
        and sys.gettrace() is None
        and bool(code.co_flags & 1)  # CO_OPTIMIZED: a function; a class body's locals are its namespace
        and not {"locals", "exec", "eval", "vars", "dir"} & set(code.co_names)
    )


def _children(value: object) -> "list[tuple[str, object]]":
    if isinstance(value, dict):
        return [("[%.20r]" % (key,), child) for key, child in _some(list(value.items())) if not _plain(child)]
    if isinstance(value, (list, tuple)):
        return [("[%d]" % place, child) for place, child in _some(list(enumerate(value[:SAMPLE]))) if not _plain(child)]
    if type(value).__module__.split(".")[0] in ("numpy", "pandas", "builtins", "jaxlib"):
        return []
    attributes = getattr(value, "__dict__", None) if not isinstance(value, type) else None
    if type(value).__name__ == "module" or not isinstance(attributes, dict):
        return []
    return [("." + str(name), child) for name, child in list(attributes.items())[:64] if not _plain(child)]


def _some(items: list) -> list:
    return items[:SAMPLE]


def _plain(value: object) -> bool:
    return value is None or isinstance(value, (int, float, bool, str, complex))


def weigh(value: object, depth: int = 0) -> "tuple[int, str]":
    """Bytes that a value holds by itself (a container with its items, from a sample), and a remark."""
    module, name = type(value).__module__.split(".")[0], type(value).__name__
    if module == "numpy" and name in ("ndarray", "memmap"):
        if name == "memmap":
            return 0, "mapped file"
        own = 0 if type(value.base).__name__ == "ndarray" else value.nbytes  # a view of another array holds nothing
        return own, f"{value.dtype}{list(value.shape)}"
    if module == "torch" and hasattr(value, "untyped_storage"):
        remark = "grad_fn " if value.grad_fn is not None else ""
        nbytes = value.numel() * value.element_size() if depth else value.untyped_storage().nbytes()
        return nbytes, remark + str(list(value.shape))  # items of a container are often views of one storage
    if module in ("jaxlib", "tensorflow") and hasattr(value, "shape") and hasattr(value, "dtype"):
        return int(getattr(value, "nbytes", 0) or 0), str(value.shape)
    if module == "pyarrow" and name in ("Table", "RecordBatch"):
        return int(value.nbytes), str(list(value.shape))
    if module == "pandas" and name in ("DataFrame", "Series"):
        return _frame(value)
    if name == "_lru_cache_wrapper":
        info = value.cache_info()
        return 0, "cache of %d, at most %s" % (info.currsize, info.maxsize)
    if isinstance(value, (list, tuple, set, frozenset, dict, deque)) and depth < NESTED:
        return _container(value, depth)
    if depth:
        return _layers(value) or sys.getsizeof(value, 64), ""
    if isinstance(value, (bytes, bytearray, str, memoryview)):
        return sys.getsizeof(value), ""
    return 0, ""


def _layers(value: object) -> int:
    """A network that a container keeps: the weights of at most `MOST_LAYERS` of its layers; 0 for anything else."""
    total, pending = 0, [value]
    for layer in pending:  # grows while it is walked
        held = getattr(layer, "__dict__", None)
        if not isinstance(held, dict) or not isinstance(held.get("_parameters"), dict) or len(pending) > MOST_LAYERS:
            continue
        weights = [*held["_parameters"].values(), *(held.get("_buffers") or {}).values()]
        total += sum(weight.numel() * weight.element_size() for weight in weights if hasattr(weight, "element_size"))
        pending.extend((held.get("_modules") or {}).values())
    return total


def _frame(value: object) -> "tuple[int, str]":
    """A table: the bytes of its columns; text columns are estimated from a sample of their cells."""
    total, text = 0, 0
    columns = (
        [value] if type(value).__name__ == "Series" else [value.iloc[:, i] for i in range(min(value.shape[1], 200))]
    )
    for column in columns:
        nbytes = int(column.memory_usage(index=False, deep=False))
        if str(column.dtype) == "object":
            cells = column.iloc[:: max(1, len(column) // 50)]
            nbytes += int(sum(sys.getsizeof(cell) for cell in cells) / max(1, len(cells)) * len(column))
            text += 1
        total += nbytes
    return total, "{}{}".format(list(value.shape), ", %d of text" % text if text else "")


def _container(value: object, depth: int) -> "tuple[int, str]":
    """A container: its own table plus the mean of some items times their number, `NESTED` levels deep.

    Deeper levels look at fewer items: a container may contain itself, and the walk has little time.
    """
    count = len(value)
    own = sys.getsizeof(value)
    if not count:
        return own, ""
    most = SAMPLE >> 2 * depth
    if isinstance(value, dict):
        items = [item for item, _ in zip(value.values(), range(most))]
    elif isinstance(value, (list, tuple, deque)):
        value = list(value) if isinstance(value, deque) else value  # another thread may be filling it
        step = max(1, count // most)
        items = [value[place] for place in range(0, count, step)][:most]
    else:
        items = [item for item, _ in zip(value, range(most))]
    total, remark = 0, ""
    for item in items:
        nbytes, about = weigh(item, depth + 1)
        total += nbytes
        remark = about or remark
    kind = _kind(items[0])
    return own + int(total / len(items) * count), f"of {kind} {remark}"
