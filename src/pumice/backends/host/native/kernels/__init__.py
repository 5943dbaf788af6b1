"""Numba kernels, each a plain function `kernel(job, first, last)`."""
