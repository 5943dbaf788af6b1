"""Kernels in WASM: each call runs in a sandbox of its own, with bounded memory, stack and time."""
