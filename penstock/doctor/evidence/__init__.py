"""What a supervised run leaves on disk, and reading it back.

Covers: names of files, writing that survives a kill, reading torn files.
Does not cover: what it means (verdict/).
"""
