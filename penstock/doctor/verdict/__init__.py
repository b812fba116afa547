"""From evidence to a verdict: pure functions.

Covers: how a run ended, the shape of its growth, ranked causes, showing them.
Does not cover: gathering evidence (run/, evidence/).
"""
