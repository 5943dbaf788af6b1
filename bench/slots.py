"""What an engine for many sequences costs a single one: decoding with 1 of 32 possible sequences beside an engine made for one.

python bench/slots.py [--device webgpu|host] [--model smollm2] [--slots 32] [--rounds 7]
Weights are random. Both engines decode in turns; a ratio of 1 means that the choice of kernels follows the sequences that run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from measure import in_turns, medians
from random_models import generate, random_engine
from shapes import CAUSAL

from pumice.backends.select import open_device
from pumice.llm.engine import Engine

PROMPT, ANSWER, CONTEXT = 16, 128, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--model", choices=sorted(CAUSAL), default="smollm2")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    device = open_device(args.device)
    dtype = "f16" if device.caps.is_gpu else "f32"
    engines = {n: random_engine(CAUSAL[args.model], device, dtype=dtype, context=CONTEXT, slots=n)[0] for n in (1, args.slots)}
    seeds = iter(range(1, 1 << 20))

    def rate(engine: Engine) -> Callable[[int], float]:
        def run(i: int) -> float:
            t = generate(engine, PROMPT, ANSWER, next(seeds))
            return t.decode_tokens / t.decode_s

        return run

    found = medians(in_turns({str(n): rate(engine) for n, engine in engines.items()}, args.rounds))
    one, many = found["1"], found[str(args.slots)]
    print(f"{args.model} on {device.name}, decode of {ANSWER} tokens after {PROMPT}, one sequence:")
    print(f"  engine for 1 sequence    {one:8.1f} tokens/s\n  engine for {args.slots:2} sequences  {many:8.1f} tokens/s")
    print(f"  ratio                    {many / one:8.3f}")
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
