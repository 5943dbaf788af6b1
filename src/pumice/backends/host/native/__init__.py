"""Compiled kernels: the tasks they run, how they are loaded, and the code they are made of."""
