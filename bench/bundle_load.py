"""Loading a bundle beside loading the file that it was made from: every byte of the bundle is hashed, of the file none.

python bench/bundle_load.py [--device host|webgpu] [--model smollm2] [--rounds 7] [--json FILE]
The two take turns, each load in a process of its own: seconds of pm.load, and the most memory that the process had. The bundle is
written to a temporary folder first, and answers are compared. "hashing" is SHA-256 over the bundle's files alone, in chunks.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import in_turns, medians, seconds_of
from report import commit_name

PROMPT = "Explain in a few sentences why the sky is blue."


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="host")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--side", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        print(json.dumps(one_load(args.side, args.device)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args.model, args.device, args.rounds, Path(folder) / "bundle")
    print(f"{args.model} on {args.device}, medians of {args.rounds} loads each, in turns")
    for side in ("file", "bundle"):
        print(f"  {side:<8} {found[f'{side}_s']:7.3f} s   {found[f'{side}_peak_bytes'] / 2**20:7.0f} MiB at most")
    rate = found["bundle_bytes"] / found["hashing_s"]
    print(f"  hashing  {found['hashing_s']:7.3f} s   {found['bundle_bytes'] / 2**20:7.0f} MiB, {rate / 1e9:.2f} GB/s on one core")
    print(f"  a bundle takes {found['ratio']:.2f} times as long as the file; the same tokens: {found['same_tokens']}")
    if args.json is not None:
        about = {"model": args.model, "device": args.device, "rounds": args.rounds, "commit": commit_name()}
        args.json.write_text(json.dumps(about | found, indent=1) + "\n")


def measure(model: str, device: str, rounds: int, bundle: Path) -> dict[str, Any]:
    """Medians of both sides; the bundle is written here."""
    from pumice.formats.bundle import BundleFiles
    from pumice.llm.bundle import export_bundle

    export_bundle(model, bundle)
    sides = {"file": model, "bundle": str(bundle)}

    def side(name: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--side", sides[name], "--device", device]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    answers = in_turns({name: lambda _, name=name: side(name) for name in sides}, rounds)
    files = BundleFiles(bundle)
    seconds = medians({name: [a["load_s"] for a in found] for name, found in answers.items()})
    peaks = medians({name: [a["peak_bytes"] for a in found] for name, found in answers.items()})
    return {
        **{f"{name}_s": value for name, value in seconds.items()},
        **{f"{name}_peak_bytes": value for name, value in peaks.items()},
        "hashing_s": seconds_of(files.check),
        "bundle_bytes": sum(files.size(name) for name in files.names),
        "ratio": seconds["bundle"] / seconds["file"],
        "same_tokens": len({tuple(a["tokens"]) for found in answers.values() for a in found}) == 1,
    }


def one_load(model: str, device: str) -> dict[str, Any]:
    """In a process of its own: how long a load takes once everything is imported, and what it leaves behind."""
    import pumice as pm

    pm.load  # noqa: B018  imported by name
    begin = time.perf_counter()
    with pm.load(model, device=device, context=512) as loaded:
        seconds = time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        tokens = loaded.generate(PROMPT, max_tokens=4, temperature=0).tokens
    return {"load_s": seconds, "peak_bytes": peak, "tokens": tokens}


if __name__ == "__main__":
    main()
