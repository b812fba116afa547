"""The machine and the container before a job starts.

Covers: limits, /dev/shm, swap, huge pages, overcommit, allocator, Python, frameworks' settings, devices.
Does not cover: the script (static/).
"""
