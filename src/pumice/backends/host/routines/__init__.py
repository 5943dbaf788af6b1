"""What the steps of a plan call: routines over NumPy and BLAS, and the tasks for compiled kernels that do the same."""
