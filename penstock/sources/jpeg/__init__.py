"""Baseline JPEG files, decoded by compiled kernels: the same pixels as libjpeg-turbo's, in less time.

In the order of the data: frame (what stands before the bits) -> entropy (bits to coefficients) -> transform
(coefficients to samples) -> colour (samples to pixels); decoder joins them, kernel says when they are used.
"""
