"""Supervising any training script.

Covers: starting it under a limit, sampling its processes, asking for stacks and holders, never leaving an orphan.
Does not cover: what the evidence means (verdict/).
"""
