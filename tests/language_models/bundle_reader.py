"""An independent runtime for bundles: written from docs/bundle.md and docs/plan-format.md alone, without Pumice.

`python bundle_reader.py DIR REQUESTS.json [VARIANT]`: REQUESTS is a list of {"prompt" or "messages", "max_tokens", …} that run
together; prints one JSON object with the tokens and texts of each, and the modules that were imported.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

# The reader of plan files, which is independent of Pumice too.
sys.path.insert(0, str(Path(__file__).parents[1] / "plan"))
import plan_reader


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """manifest.json, after all hashes were compared."""
    text = (folder / "manifest.json").read_text()
    manifest: dict[str, Any] = json.loads(text)
    if manifest["format"] != "pumice-bundle" or manifest["version"] != 3:
        raise SystemExit("no bundle of version 3")
    rest = {k: v for k, v in manifest.items() if k != "sha256"}
    if hashlib.sha256(canonical(rest).encode()).hexdigest() != manifest["sha256"]:
        raise SystemExit("manifest.json is damaged")
    if text != canonical(manifest) + "\n":
        raise SystemExit("manifest.json is not in canonical form")
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        if len(data) != entry["bytes"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise SystemExit(f"{name} is damaged")
        parts = [data[at : at + manifest["chunk_bytes"]] for at in range(0, len(data), manifest["chunk_bytes"])]
        if [hashlib.sha256(part).hexdigest() for part in parts] != entry["chunks"]:
            raise SystemExit(f"{name} has other chunks")
    return manifest


# -- inputs -------------------------------------------------------------------------------------------------------------
def evaluate(e: Any, known: dict[str, Any]) -> Any:
    if isinstance(e, str):
        return known[e]
    if isinstance(e, int):
        return e
    op, args = e[0], [evaluate(a, known) for a in e[1:]]
    if op == "+":
        return sum(args)
    if op == "*":
        return math.prod(args)
    if op == "at":
        return args[0][args[1]]
    if op == "count":
        return args[0].count(args[1])
    if op == "uniform":
        return uniform(*args)
    a, b = args
    if op == "//":
        return a // b if b else 0
    if op == "%":
        return a % b if b else 0
    return {"max": max, "min": min}[op](a, b)


def uniform(seed: int, number: int) -> float:
    """Threefry-2x32 of the seed and the number, 24 bits of its first word."""
    mask = 0xFFFFFFFF
    keys = [seed & mask, seed >> 32]
    keys.append(keys[0] ^ keys[1] ^ 0x1BD11BDA)
    x, y = (number + keys[0]) & mask, (0x70756D69 + keys[1]) & mask
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = (x + y) & mask
            y = (((y << turn) | (y >> (32 - turn))) & mask) ^ x
        x = (x + keys[(group + 1) % 3]) & mask
        y = (y + keys[(group + 2) % 3] + group + 1) & mask
    return (x >> 8) / 2**24


def make_inputs(table: dict[str, Any], sequences: list[dict[str, Any]], sizes: dict[str, int]) -> dict[str, Any]:
    sizes = {"sequence": len(sequences), "token": sequences[0]["length"], **sizes}
    out = {}
    for name, entry in table.items():
        shape = [len(entry["columns"]) if axis == "column" else sizes[axis] for axis in entry["axes"]]
        out[name] = np.empty(shape, {"i32": "<i4", "f32": "<f4"}[entry["dtype"]])
        for place in product(*map(range, shape)):
            index = dict(zip(entry["axes"], place))
            expression = entry["columns"][index["column"]] if "columns" in entry else entry["value"]
            out[name][place] = evaluate(expression, {**sequences[index.get("sequence", 0)], **index})
    return out


# -- the model ----------------------------------------------------------------------------------------------------------
class Model:
    """All plans of a variant on one device, over the same weights and states."""

    def __init__(self, folder: Path, variant: str | None = None) -> None:
        self.folder, self.bundle = folder, read_manifest(folder)
        self.device = plan_reader.open_device()
        self.variant = self._choose(variant)
        self.shared = [plan_reader.new_buffer(self.device, n) for n in self.variant["shared"]["nbytes"]]
        self.steps: dict[str, plan_reader.Runtime] = {}
        self.uploaded: set[str] = set()

    def _choose(self, name: str | None) -> dict[str, Any]:
        """The variant of that name, else the first that the device runs."""
        software = self.device.adapter.info["adapter_type"] == "CPU"
        for variant in self.bundle["variants"]:
            if name is None and variant["caps"]["software"] and not software:
                continue
            files = [self.folder / step["plan"] for step in variant["steps"].values()]
            if name in (None, variant["name"]) and all(plan_reader.fits(f.read_bytes(), self.device) for f in files):
                found: dict[str, Any] = variant
                return found
        raise SystemExit("no variant of the bundle fits the device")

    def runtime(self, name: str) -> plan_reader.Runtime:
        """The plan of a step, compiled when it is first used; weights that no earlier one had are uploaded."""
        if name not in self.steps:
            step = self.variant["steps"][name]
            buffers = [None if k is None else self.shared[k] for k in step["buffers"]]
            made = plan_reader.Runtime((self.folder / step["plan"]).read_bytes(), self.device, buffers)
            pieces = dict(zip(self.bundle["weights"]["name"], self.bundle["weights"]["pieces"]))
            for row in plan_reader.rows(made.plan["params"]):
                if row["name"] not in self.uploaded:
                    made.write(row["value"], b"".join(self.piece(*piece) for piece in pieces[row["name"]]))
                    self.uploaded.add(row["name"])
            self.steps[name] = made
        return self.steps[name]

    def piece(self, file: str, offset: int, nbytes: int) -> bytes:
        with open(self.folder / file, "rb") as opened:
            opened.seek(offset)
            return opened.read(nbytes)

    def step(self, name: str, sequences: list[dict[str, Any]]) -> list[int]:
        """Runs a step; the token of each sequence."""
        inputs = make_inputs(self.variant["steps"][name]["inputs"], sequences, {"page": self.variant["cache"]["table"]})
        _, shape, raw = self.runtime(name).run(inputs)["outputs token"]
        tokens: list[int] = np.frombuffer(raw, "<i4").reshape(shape).tolist()
        if self.bundle["failed_token"] in tokens:
            raise SystemExit("the logits are not finite")
        return tokens

    def generate(self, requests: list[dict[str, Any]]) -> list[list[int]]:
        """The answers to requests that run together, as many as there are slots; others wait for one."""
        cache = self.variant["cache"]
        free_slots = list(range(cache["slots"]))
        # Any pages will do: here those of one sequence are scattered.
        free_pages = [list(range(cache["pages"])) for _ in cache["windows"]]
        waiting, live, sequences = list(requests), [], []
        while waiting or live:
            while waiting and free_slots:
                sequence = self._enter(waiting.pop(0), free_slots.pop(), free_pages)
                live.append(sequence)
                sequences.append(sequence)
            for s in [s for s in live if not s["left"] or s["answer"][-1] in s["ends"]]:
                live.remove(s)
                free_slots.append(s["slot"])
                for group, free in enumerate(free_pages):
                    free += s[f"pages{group or ''}"]
            if live and not (waiting and free_slots):
                drawn = any(s["temperature"] > 0 for s in live)
                for s, token in zip(live, self.step("decode_sampled" if drawn else "decode", live)):
                    self._take(s, token, 1)
        return [s["answer"] for s in sequences]

    def _enter(self, request: dict[str, Any], slot: int, free_pages: list[list[int]]) -> dict[str, Any]:
        """A request takes a slot and pages, and its prompt runs."""
        defaults = self.bundle["sampler"]["defaults"]
        sequence = {**defaults, "seed": 0, **{k: v for k, v in request.items() if k in (*defaults, "seed")}}
        sequence |= {"slot": slot, "start": 0, "number": 0, "prompt": len(request["tokens"]), "length": 0}
        sequence |= {"prompt_tokens": request["tokens"], "answer": [], "left": request["max_tokens"]}
        sequence["ends"] = [] if request.get("ignore_eos") else self.bundle["tokenizer"]["eos"]
        for group, free in enumerate(free_pages):
            taken = range(self.variant["cache"]["table"])
            sequence[f"pages{group or ''}"] = [free.pop(slot % len(free)) for _ in taken]
        if sequence["temperature"] > 0:
            self._fill_slot(sequence)
        self._prefill(sequence, request["tokens"])
        return sequence

    def _fill_slot(self, sequence: dict[str, Any]) -> None:
        """Writes the sequence's row of states that steps which draw go by."""
        sizes = {"vocabulary": self.bundle["model"]["vocab"]}
        runtime = self.runtime("prefill_sampled")
        for name, row in make_inputs(self.bundle["sampler"]["slot_states"], [sequence], sizes).items():
            (value,) = [s["value"] for s in plan_reader.rows(runtime.plan["states"]) if s["name"] == name]
            ((buffer, offset, _),) = runtime.values[value]["parts"]
            self.device.queue.write_buffer(runtime.buffers[buffer], offset + sequence["slot"] * row.nbytes, row.tobytes())

    def _prefill(self, sequence: dict[str, Any], tokens: list[int]) -> None:
        chunk = self.bundle["chunk"]
        step = "prefill_sampled" if sequence["temperature"] > 0 else "prefill"
        for first in range(0, len(tokens), chunk):
            sequence["tokens"] = tokens[first : first + chunk]
            sequence["length"] = len(sequence["tokens"])
            (token,) = self.step(step, [sequence])
            if first + chunk < len(tokens):
                sequence["start"] += sequence["length"]
        self._take(sequence, token, sequence["length"])
        sequence["length"] = 1

    @staticmethod
    def _take(sequence: dict[str, Any], token: int, ran: int) -> None:
        sequence["start"] += ran
        sequence["number"] += 1
        sequence["left"] -= 1
        sequence["answer"].append(token)


# -- text ---------------------------------------------------------------------------------------------------------------
class Text:
    """The tokenizer and the chat template of a bundle."""

    def __init__(self, folder: Path, bundle: dict[str, Any]) -> None:
        from tokenizers import Tokenizer

        self.settings, self.template, self.folder = bundle["tokenizer"], bundle["template"], folder
        self.tokenizer = Tokenizer.from_str((folder / self.settings["file"]).read_text(encoding="utf-8"))

    def encode(self, request: dict[str, Any]) -> list[int]:
        if "messages" in request:
            import jinja2

            source = (self.folder / self.template["sources"]["default"]).read_text(encoding="utf-8")
            given = {**self.template["variables"], "messages": request["messages"], "add_generation_prompt": True}
            text = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source).render(given)
            return list(self.tokenizer.encode(text, add_special_tokens=False).ids)
        around = self.settings["surrounding"]
        if around is None:
            return list(self.tokenizer.encode(request["prompt"], add_special_tokens=True).ids)
        ids = self.tokenizer.encode(request["prompt"], add_special_tokens=False).ids
        return [*around["before"], *ids, *around["after"]]

    def decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


def main(folder: Path, requests: list[dict[str, Any]], variant: str | None = None) -> None:
    model = Model(folder, variant)
    text = Text(folder, model.bundle)
    for request in requests:
        request["tokens"] = text.encode(request)
    answers = model.generate(requests)
    found = [{"prompt": r["tokens"], "tokens": a, "text": text.decode(a)} for r, a in zip(requests, answers)]
    modules = sorted({name.split(".")[0] for name in sys.modules})
    print(json.dumps({"answers": found, "variant": model.variant["name"], "modules": modules}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), *sys.argv[3:])
