"""Model architectures: a config becomes the params that a checkpoint must hold, and functions to trace; no devices."""
