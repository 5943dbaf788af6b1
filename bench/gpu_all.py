"""All that only a real GPU can show, one script after the other within a time limit: results first, then speeds.

python bench/gpu_all.py [--out gpu-results] [--minutes 25] [--only check,table] [--old CHECKOUT]
Each script is a process of its own with a limit of its own, so that one which hangs or fails costs the others nothing. What
it prints goes to OUT/NAME.log, figures to OUT/NAME.json where it can write them; the last lines say how each one ended.
With --old the tables of that checkout are measured in turns with this one's (before_after.py).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from measure import checkout, some_of

BENCH = Path(__file__).parent


@dataclass(frozen=True)
class Part:
    """A script with its arguments, how long it may take, and whether it takes `--json FILE`."""

    script: str
    arguments: tuple[str, ...]
    limit_s: float
    json: bool = False

    def command(self, name: str, out: Path) -> list[str]:
        figures = ["--json", str(out / f"{name}.json")] if self.json else []
        return [sys.executable, str(BENCH / self.script), *self.arguments, *figures]


# In order of worth: what comes last is left out where time runs short.
PARTS = {
    "check": Part("gpu_check.py", ("--graphs", "50"), 300),
    "table": Part("gpu.py", (), 780, json=True),
    "receipts": Part("receipts.py", ("--device", "webgpu", "--model", "random:smollm2"), 90, json=True),
    "foreground": Part("foreground.py", ("--device", "webgpu"), 180, json=True),
    "slots": Part("slots.py", ("--device", "webgpu"), 90),
    "serve": Part("serve.py", ("--gpu-shape", "llama1b"), 300),
}
OLD = "before_after"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="the folder for logs and figures")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all of it")
    parser.add_argument("--only", type=some_of([*PARTS, OLD]), help=f"some of {','.join([*PARTS, OLD])}")
    parser.add_argument("--old", type=checkout, help="a checkout to compare the tables with")
    args = parser.parse_args()
    parts = dict(PARTS)
    if args.old is not None:
        parts[OLD] = Part("before_after.py", (str(args.old), "--table", "gpu", "--rounds", "3"), 600, json=True)
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    ended = {name: run(name, part, args.out, end) for name, part in parts.items() if args.only is None or name in args.only}
    print("\n".join(f"{name:<14} {how}" for name, how in ended.items()))
    return int(any(how.startswith("failed") for how in ended.values()))


def run(name: str, part: Part, out: Path, end: float) -> str:
    """Runs a part until its limit or the end of all; how that ended."""
    limit = min(part.limit_s, end - time.monotonic())
    if limit < 10:
        return "left out: no time"
    begin = time.monotonic()
    print(f"{name}: {part.script} {' '.join(part.arguments)}", file=sys.stderr, flush=True)
    with (out / f"{name}.log").open("w") as log:
        try:
            done = subprocess.run(part.command(name, out), stdout=log, stderr=subprocess.STDOUT, timeout=limit)
        except subprocess.TimeoutExpired:
            return f"failed: not done after {limit:.0f} s"
    took = time.monotonic() - begin
    return f"done in {took:.0f} s" if done.returncode == 0 else f"failed with exit code {done.returncode} after {took:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
