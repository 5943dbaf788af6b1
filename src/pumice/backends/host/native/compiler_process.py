"""The process that compiles kernels for another one: names come in on standard input, code goes into the cache."""

from __future__ import annotations

import gc
import sys

from pumice.backends.host.native.compilers import DONE
from pumice.backends.host.native.machine_code import MachineCode


def main() -> None:
    """Compiles the kernels that are named on standard input, a line each, and says so on standard output."""
    gc.disable()  # numba leaves much behind, and this process ends soon
    code = MachineCode()
    for line in sys.stdin:
        if not code.make(line.strip()):
            return
        sys.stdout.buffer.write(DONE)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
