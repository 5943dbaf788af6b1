"""An independent reader of plan files: written from docs/plan-format.md alone, it runs a plan through wgpu without Pumice.

`python plan_reader.py (FILE.plan DATA.npz OUT.npz)…`: DATA holds `param NAME`, and `RUN NAME` (RUN = 0, 1, …) for inputs; OUT
takes `RUN outputs NAME` and `RUN captures NAME`.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from typing import Any

import numpy as np
import wgpu

ITEM = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "i8": 1, "u8": 1, "bool": 1}


def whole(n: int, to: int = 16) -> int:
    return -(-n // to) * to


def read_file(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    if data[:8] != b"\x93PUMPLAN" or len(data) < 48:
        raise SystemExit("no plan file")
    if hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise SystemExit("damaged")
    version, size = struct.unpack_from("<II", data, 8)
    if version != 1:
        raise SystemExit(f"version {version}")
    header = json.loads(data[16 : 16 + size])
    at, blobs = whole(16 + size, 8), []
    for n in header["blobs"]:
        blobs.append(data[at : at + n])
        at = whole(at + n, 8)
    if at != len(data) - 32:
        raise SystemExit("the blobs do not fill the file")
    return header, blobs


def triples(words: list[int]) -> list[list[int]]:
    return [words[i : i + 3] for i in range(0, len(words), 3)]


def rows(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """A table, which the file has by columns, row by row."""
    return [dict(zip(table, row)) for row in zip(*table.values())]


def evaluate(e: Any, env: dict[str, int]) -> int:
    if isinstance(e, int):
        return e
    if isinstance(e, str):
        return env[e]
    op, args = e[0], [evaluate(a, env) for a in e[1:]]
    if op == "+":
        return sum(args)
    if op == "*":
        product = 1
        for a in args:
            product *= a
        return product
    a, b = args
    if op == "//":
        return a // b if b else 0
    if op == "%":
        return a % b if b else 0
    return {"max": max, "min": min}[op](a, b)


def fold(n: int, limit: int) -> tuple[int, int, int]:
    if n <= limit:
        return n, 1, 1
    y = -(-n // limit)
    if y <= limit:
        return -(-n // y), y, 1
    z = -(-y // limit)
    return limit, -(-y // z), z


def new_buffer(device: Any, nbytes: int) -> Any:
    storage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
    return device.create_buffer(size=max(16, whole(nbytes)), usage=storage)


def open_device() -> Any:
    """The first Vulkan adapter with all that it has."""
    adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] == "Vulkan"]
    features = [f for f in ("subgroup", "shader-f16") if f in adapters[0].features]
    limits = {k: v for k, v in adapters[0].limits.items() if v}
    return adapters[0].request_device_sync(required_features=features, required_limits=limits)


def unmet(needs: dict[str, Any], device: Any) -> str:
    """What a device lacks of a plan's needs, nothing if it runs the plan."""
    has = device.adapter.limits
    for key, name in (
        ("max_storage_buffers", "max-storage-buffers-per-shader-stage"),
        ("max_binding_bytes", "max-storage-buffer-binding-size"),
        ("max_buffer_bytes", "max-buffer-size"),
        ("max_uniform_bytes", "max-uniform-buffer-binding-size"),
        ("max_invocations", "max-compute-invocations-per-workgroup"),
        ("max_workgroup_x", "max-compute-workgroup-size-x"),
        ("workgroup_memory", "max-compute-workgroup-storage-size"),
    ):
        if needs[key] > has[name]:
            return f"the plan needs {key} {needs[key]}, the device has {has[name]}"
    if needs["storage_alignment"] % has["min-storage-buffer-offset-alignment"]:
        return "the plan's offsets are not aligned for this device"
    for key, feature in (("f16", "shader-f16"), ("subgroups", "subgroup")):
        if needs[key] and feature not in device.features:
            return f"the plan needs {key}"
    return ""


def fits(data: bytes, device: Any) -> bool:
    """Whether a device is known to run the plan of a file; wgpu does not say which sizes subgroups have."""
    needs = read_file(data)[0]["needs"]
    return "subgroup_size" not in needs and not unmet(needs, device)


class Runtime:
    """A plan on a device; `shared` has the buffers that it has in common with other plans, None for those of its own."""

    def __init__(self, data: bytes, device: Any = None, shared: list[Any] | None = None) -> None:
        self.plan, self.blobs = read_file(data)
        if self.plan["target"] != "webgpu":
            raise SystemExit(f"a plan of {self.plan['target']} steps: this reader runs WebGPU plans only")
        self.device = device or open_device()
        self.adapter = self.device.adapter
        if missing := unmet(self.plan["needs"], self.device):
            raise SystemExit(missing)
        types = rows(self.plan["types"])

        def places(table: dict[str, Any]) -> dict[int, dict[str, Any]]:
            return {v["id"]: {**types[v["type"]], "parts": triples(v["parts"])} for v in rows(table)}

        # Sources have one place, everything else one for each regime.
        self.values = places(self.plan["values"])
        self.places = [{**self.values, **places(regime["values"])} for regime in self.plan["regimes"]]
        given = shared or [None] * len(self.plan["buffers"]["nbytes"])
        sizes = self.plan["buffers"]["nbytes"]
        self.buffers = [b or new_buffer(self.device, n) for b, n in zip(given, sizes, strict=True)]
        self.kernels = rows(self.plan["kernels"])
        self.pipelines: dict[int, tuple[Any, Any]] = {}  # each is compiled when a step first needs it
        for row in rows(self.plan["constants"]):
            if row["value"] in self.values:
                self.write(row["value"], self.blobs[row["blob"]])
        for row in rows(self.plan["states"]):
            if row["init"] is not None:
                self.write(row["value"], self.blobs[row["init"]])

    def pipeline(self, kernel: dict[str, Any]) -> tuple[Any, Any]:
        types = ["read-only-storage" if a == "r" else "storage" for a in kernel["access"]]
        types += ["uniform"] if kernel["words"] else []
        layout = self.device.create_bind_group_layout(
            entries=[{"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": t}} for i, t in enumerate(types)]
        )
        # wgpu takes this line for f16, and none for subgroups.
        enable = "enable f16;\n" if "f16" in kernel["features"] else ""
        module = self.device.create_shader_module(code=enable + self.blobs[kernel["wgsl"]].decode())
        pipeline = self.device.create_compute_pipeline(
            layout=self.device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": module, "entry_point": "main"},
        )
        return pipeline, layout

    def write(self, value: int, data: bytes) -> None:
        for buffer, offset, nbytes in self.values[value]["parts"]:
            piece, data = data[:nbytes], data[nbytes:]
            if piece:
                self.device.queue.write_buffer(self.buffers[buffer], offset, piece + bytes(-len(piece) % 4))
        assert not data, "the value has more bytes than its parts"

    def set_param(self, name: str, array: np.ndarray[Any, Any]) -> None:
        row = next(p for p in rows(self.plan["params"]) if p["name"] == name)
        assert list(array.shape) == row["stored"], f"{name} must be {row['stored']}"
        self.write(row["value"], array.tobytes())

    # -- a run ------------------------------------------------------------------------------------------------------
    def symbols(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
        env: dict[str, int] = {}
        for row in rows(self.plan["infer"]):
            slope, rest = self.dim(row["slope"], env), self.dim(row["rest"], env)
            value, remainder = divmod(shapes[row["input"]][row["axis"]] - rest, slope)
            assert not remainder and value >= 0, f"{row['symbol']} does not follow"
            env[row["symbol"]] = value
        for row in rows(self.plan["inputs"]):
            shape = self.shape(row["value"], env)
            assert shapes[row["name"]] == shape, f"the input {row['name']} must be {shape}"
        assert all(env[s["name"]] <= s["max"] for s in rows(self.plan["symbols"])), "a symbol is over its maximum"
        for row in rows(self.plan["requirements"]):
            if self.dim(row["unless_empty"], env) > 0:
                assert self.dim(row["small"], env) <= self.dim(row["large"], env), row["text"]
        return env

    def dim(self, d: Any, env: dict[str, int]) -> int:
        return d if isinstance(d, int) else evaluate(self.plan["exprs"][d["e"]], env)

    def regime(self, env: dict[str, int]) -> int:
        """The first regime whose bounds hold."""
        for number, regime in enumerate(self.plan["regimes"]):
            if all(self.dim(b["dim"], env) <= b["most"] for b in rows(regime["bounds"])):
                return number
        raise SystemExit("no regime holds for these sizes")

    def shape(self, value: int, env: dict[str, int]) -> tuple[int, ...]:
        return tuple(self.dim(d, env) for d in self.values[value]["shape"])

    def run(self, inputs: dict[str, np.ndarray[Any, Any]]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        env = self.symbols({name: a.shape for name, a in inputs.items()})
        for row in rows(self.plan["index_inputs"]):
            size, indices = self.dim(row["size"], env), inputs[row["input"]]
            assert indices.size == 0 or (indices.min() >= -size and indices.max() < size), f"{row['input']} out of range"
        for row in rows(self.plan["inputs"]):
            self.write(row["value"], inputs[row["name"]].tobytes())
        uniforms = [self.uniform_buffer([self.dim(d, env) for d in words]) for words in self.plan["uniforms"]]
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        chosen = self.regime(env)
        regime, self.values = self.plan["regimes"][chosen], self.places[chosen]
        for step in rows(regime["steps"]):
            groups = step["groups"]
            if isinstance(groups, dict) and "value" in groups:
                # Simplest, though it waits: submit what is recorded and read the word. The clamp is the reader's task.
                compute.end()
                self.device.queue.submit([encoder.finish()])
                encoder = self.device.create_command_encoder()
                compute = encoder.begin_compute_pass()
                number = self.count(groups["value"], groups["word"])
                groups = min(number, self.dim(groups["most"], env))
            else:
                groups = self.dim(groups, env)
            if groups > 0:
                self.dispatch(compute, step, uniforms, groups)
        compute.end()
        self.device.queue.submit([encoder.finish()])
        results = {}
        for kind in ("outputs", "captures"):
            for row in rows(self.plan[kind]):
                shape, value = self.shape(row["value"], env), self.values[row["value"]]
                results[f"{kind} {row['name']}"] = value["dtype"], shape, self.read(value, shape)
        self.copy_states(regime)
        return results

    def count(self, value: int, word: int) -> int:
        ((buffer, offset, _),) = self.values[value]["parts"]
        return int(struct.unpack("<I", self.device.queue.read_buffer(self.buffers[buffer], offset + 4 * word, 4))[0])

    def uniform_buffer(self, words: list[int]) -> Any:
        data = b"".join(struct.pack("<I", w % 2**32) for w in words)
        return self.device.create_buffer_with_data(data=data + bytes(-len(data) % 16), usage=wgpu.BufferUsage.UNIFORM)

    def dispatch(self, compute: Any, step: dict[str, Any], uniforms: list[Any], groups: int) -> None:
        if step["kernel"] not in self.pipelines:
            self.pipelines[step["kernel"]] = self.pipeline(self.kernels[step["kernel"]])
        pipeline, layout = self.pipelines[step["kernel"]]
        entries = []
        pairs = zip(step["bindings"][::2], step["bindings"][1::2])
        for i, (value, part) in enumerate(pairs):
            buffer, offset, nbytes = self.values[value]["parts"][part]
            resource = {"buffer": self.buffers[buffer], "offset": offset, "size": whole(nbytes)}
            entries.append({"binding": i, "resource": resource})
        if step["uniforms"] is not None:
            buffer = uniforms[step["uniforms"]]
            entries.append({"binding": len(entries), "resource": {"buffer": buffer, "offset": 0, "size": buffer.size}})
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, self.device.create_bind_group(layout=layout, entries=entries))
        compute.dispatch_workgroups(*fold(groups, self.adapter.limits["max-compute-workgroups-per-dimension"]))

    def read(self, value: dict[str, Any], shape: tuple[int, ...]) -> bytes:
        left, found = int(np.prod(shape)) * ITEM[value["dtype"]], b""
        for buffer, offset, nbytes in value["parts"]:
            n = min(left, nbytes)
            if n:
                found += bytes(self.device.queue.read_buffer(self.buffers[buffer], offset, whole(n, 4)))[:n]
                left -= n
        return found

    def copy_states(self, regime: dict[str, Any]) -> None:
        encoder = self.device.create_command_encoder()
        for state, value in zip(regime["copies"]["to"], regime["copies"]["value"]):
            size = int(np.prod(self.values[state]["shape"])) * ITEM[self.values[state]["dtype"]]
            (to, to_at, _), (source, at, _) = self.values[state]["parts"][0], self.values[value]["parts"][0]
            if size and (to, to_at) != (source, at):
                encoder.copy_buffer_to_buffer(self.buffers[source], at, self.buffers[to], to_at, whole(size, 4))
        self.device.queue.submit([encoder.finish()])


def main(file: str, data: str, out: str) -> None:
    with open(file, "rb") as opened:
        runtime = Runtime(opened.read())
    given: dict[str, Any] = dict(np.load(data))
    for name, array in given.items():
        if name.startswith("param "):
            runtime.set_param(name.removeprefix("param "), array)
    results: dict[str, Any] = {}
    run = 0
    while inputs := {k.split(" ", 1)[1]: a for k, a in given.items() if k.split(" ", 1)[0] == str(run)}:
        for name, (dtype, shape, raw) in runtime.run(inputs).items():
            plain = {"f32": "<f4", "i32": "<i4", "u32": "<u4", "f16": "<f2", "bool": "?"}.get(dtype, "u1")
            results[f"{run} {name}"] = np.frombuffer(raw, plain).reshape(shape if plain != "u1" else -1)
        run += 1
    np.savez(out, **results)


if __name__ == "__main__":
    for i in range(1, len(sys.argv), 3):
        main(*sys.argv[i : i + 3])
    print("modules:", *sorted({name.split(".")[0] for name in sys.modules}))
