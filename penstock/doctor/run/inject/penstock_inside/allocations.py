"""Recording allocations with memray, in rehearsals only: all the time it would cost 5 to 15 %.

Covers: starting memray in the process that runs the script, where it is installed for that Python.
Does not cover: reading the recording (rehearse/allocations.py). What a killed process recorded can be read.
"""

import atexit
import os


def record(folder: str) -> bool:
    """Start; False where memray is not installed. Processes that the script starts are not recorded."""
    if os.environ.pop("PENSTOCK_MEMRAY", "") != "1":
        return False
    try:
        import memray
    except ImportError:
        return False
    tracker = memray.Tracker(os.path.join(folder, "memray.%d.bin" % os.getpid()))
    tracker.__enter__()
    atexit.register(tracker.__exit__, None, None, None)
    return True
