"""Starting the hooks in one process: board, stacks, holders, probes, errors, imports.

Covers: what happens at start-up, after a fork and at exit.
Does not cover: the hooks of the frameworks (hooks.py).
"""

import atexit
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import traceback

from penstock_inside import board as slots
from penstock_inside.allocations import record
from penstock_inside.board import Board
from penstock_inside.hooks import Hooks
from penstock_inside.importing import Finder
from penstock_inside.journal import Journal, is_users
from penstock_inside.probes import probe

STACKS, HOLDERS, PROBES, DEEP = (signal.SIGRTMIN + number for number in (11, 12, 13, 10))
CAN_DEEP, CAN_ANSWER = 1, 2
DEEPEST_STACK = 60
PAUSE_S = 0.12
"""Walks over names are never closer than this, whoever asks."""


class Inside:
    """Everything that is active in this process."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.join(folder, "inside")
        self.board = Board(self.folder)
        self.errors = Journal(self.folder, "errors")
        self.holders = Journal(self.folder, "holders")
        self.probes = Journal(self.folder, "probes")
        self.stacks = Journal(self.folder, "stacks")
        self.hooks = Hooks(self.board, Journal(self.folder, "calls"))
        self._deep = None  # type: object
        self._next_holders_s = 0.0

    def begin(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        self.board.open()
        self.board.enter("load")
        self._catch_signals()
        self._catch_errors()
        record(self.folder)
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self.board.enter, "end")
        sys.meta_path.insert(0, Finder(self.hooks, self.board))

    def _catch_signals(self) -> None:
        self._open_deep()
        ready = CAN_DEEP
        if threading.current_thread() is threading.main_thread():
            handlers = (
                (STACKS, without_collecting(self._tell_stacks)),
                (HOLDERS, without_collecting(self._tell_holders)),
                (PROBES, self._tell_probes),
            )
            for number, handler in handlers:
                signal.signal(number, handler)
                signal.siginterrupt(number, False)
            ready |= CAN_ANSWER
        self.board.page[slots.READY] = ready

    def _open_deep(self) -> None:
        """Stacks from inside of a long call of C code, which answers no other signal.

        Only asked for when a process does not answer: in a process that runs bytecode faulthandler has crashed
        Python 3.11, for a reason that is not known.
        """
        self._deep = open(os.path.join(self.folder, "deep.%d" % os.getpid()), "w")  # noqa: SIM115
        faulthandler.register(DEEP, file=self._deep, all_threads=False)

    def _tell_stacks(self, number: int, frame: object) -> None:
        self.board.page[slots.ANSWERS] += 1
        try:
            self.stacks.write(threads=all_stacks(frame))
        except Exception as error:
            self.errors.write(kind="inside", type=type(error).__name__, message=str(error))

    def _after_fork(self) -> None:
        ready = self.board.page[slots.READY]
        self.board.open(forked=True)
        self._open_deep()
        self.board.page[slots.READY] = ready
        self._next_holders_s = 0.0

    def _tell_holders(self, number: int, frame: object) -> None:
        from penstock_inside.holders import NameWalk  # only when asked for

        now = time.monotonic()
        if now < self._next_holders_s:
            return
        try:
            names = NameWalk(self.hooks.remembered).run()
            values = {"holders": names, "blocks": sys.getallocatedblocks()}  # type: dict[str, object]
            values["phase"] = slots.PHASES[self.board.page[slots.PHASE]]
            torch = sys.modules.get("torch")
            if torch is not None and hasattr(torch, "is_grad_enabled"):
                values["grad"] = torch.is_grad_enabled()  # of this thread, which is the main one
            pyplot = sys.modules.get("matplotlib.pyplot")
            if pyplot is not None:
                values["figures"] = len(pyplot.get_fignums())
            self.holders.write(**values)
        except Exception as error:  # a half-built object, a torn frame: the script goes on
            self.errors.write(kind="inside", type=type(error).__name__, message=str(error))
        end = time.monotonic()
        self.board.page[slots.WALK_US] = int(1e6 * (end - now))
        self._next_holders_s = end + PAUSE_S

    def _tell_probes(self, number: int, frame: object) -> None:
        try:
            self.probes.write(**probe())
        except Exception as error:
            self.errors.write(kind="inside", type=type(error).__name__, message=str(error))

    def _catch_errors(self) -> None:
        before, before_thread = sys.excepthook, threading.excepthook

        def report(kind, error, trace):
            self.tell_error(kind, error, trace)
            before(kind, error, trace)

        def report_thread(args):
            self.tell_error(args.exc_type, args.exc_value, args.exc_traceback)
            before_thread(args)

        sys.excepthook, threading.excepthook = report, report_thread

    def tell_error(self, kind, error, trace) -> None:
        """Write down how the script failed: the innermost frames, and the phase in which it happened."""
        try:
            frames = [f"{f.filename}:{f.lineno} {f.name}" for f in traceback.extract_tb(trace)[-12:]]
            phase = slots.PHASES[self.board.page[slots.PHASE]]
            name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
            self.errors.write(
                kind="error", type=name, message=str(error)[:4000], frames=frames, phase=phase, during=handled(error)
            )
        except Exception as inner:  # an error whose text cannot be made is still shown by Python itself
            self.errors.write(kind="inside", type=type(inner).__name__, message=str(inner))


def without_collecting(tell):
    """What is looked at must not be freed by the looking: a walk makes objects, and would run the collector."""

    def told(number, frame):
        enabled = gc.isenabled()
        gc.disable()
        try:
            tell(number, frame)
        finally:
            if enabled:
                gc.enable()

    return told


def all_stacks(main: object) -> "list[list[list[object]]]":
    """File, line and function of every frame, innermost first; the main thread, which answers, is the last."""
    me = threading.get_ident()
    tops = [frame for thread, frame in sys._current_frames().items() if thread != me]
    found = []
    for frame in [*tops, main]:
        rows = []  # type: list[list[object]]
        while frame is not None and len(rows) < DEEPEST_STACK:
            rows.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
            frame = frame.f_back
        found.append(rows)
    return found


def handled(error: object) -> "dict[str, object]":
    """The error in whose handler this one happened: what it was, and the line of the script that failed then."""
    first = getattr(error, "__context__", None)
    if first is None:
        return {}
    frames = [
        "%s:%d" % (f.filename, f.lineno) for f in traceback.extract_tb(first.__traceback__) if is_users(f.filename)
    ]
    return {
        "type": type(first).__name__,
        "message": str(first)[:1000],
        "place": frames[0] if frames else "",
        "retried": retried(error),
    }


def retried(error: object) -> str:
    """The outermost line of the script that was running when an error happened."""
    trace = getattr(error, "__traceback__", None)
    places = ["%s:%d" % (f.filename, f.lineno) for f in traceback.extract_tb(trace) if is_users(f.filename)]
    return places[0] if places else ""


def start(folder: str) -> None:
    """Start the hooks of this process."""
    Inside(folder).begin()
