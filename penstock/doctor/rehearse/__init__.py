"""A short run under the limit that tells how the long one ends.

Covers: running some minutes, peak or slope, the step at which a leak will kill.
Does not cover: the static look (static/).
"""
