"""Several adapters at once: each row of a batch has its own, and adapters come and go while a store is in use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.errors import InputError, ShapeError, UnknownName
from pumice.formats import open_weights
from pumice.llm.adapters import Adapters
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams, load_model_params
from pumice.models.lora import LowRank, attach, choose_layers
from pumice.models.memory import WholeSequences
from pumice.models.registry import CausalArchitecture, get_architecture
from tiny_models import GOLDENS, checkpoint

from harness import device

Array = np.ndarray[Any, Any]
GOLDEN = Path(__file__).parent / "golden" / "llama"
TOKENS = np.array([[5, 17, 3, 42, 9], [11, 23, 2, 30, 31], [7, 8, 19, 4, 6], [40, 1, 2, 3, 9]], np.int32)


def model(name: str = "llama") -> tuple[ModelArchConfig, CausalArchitecture, LoadedParams]:
    cfg = ModelArchConfig.from_hf(json.loads((GOLDENS / name / "config.json").read_text()))
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, CausalArchitecture)
    with open_weights(GOLDENS / name / "model.safetensors") as weights:
        params = load_model_params(cfg, weights)
        return cfg, arch, LoadedParams(params.specs, {k: np.array(v) for k, v in params.arrays.items()}, params.nbytes)


def random_adapter(
    cfg: ModelArchConfig, seed: int, rank: int = 4, targets: tuple[str, ...] = ("attention",)
) -> dict[str, LowRank]:
    r = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        return (r.standard_normal(shape) * 0.2).astype(np.float32)

    return {
        layer.path: LowRank(draw(rank, layer.inputs), draw(layer.outputs, rank), 0.5 + seed)
        for layer in choose_layers(cfg, targets)
    }


def logits_of(arch: CausalArchitecture, cfg: ModelArchConfig, params: LoadedParams, tokens: Array, target: str) -> Array:
    """Those of a model whose weights have an adapter, or none, for all rows."""

    def run(params: Any, tokens: Any) -> Any:
        positions = pm.expand_dims(pm.arange(tokens.shape[1], dtype="i32"), 0) + pm.zeros((tokens.shape[0], 1), "i32")
        return arch.logits(cfg, params, arch.hidden(cfg, params, tokens, positions, WholeSequences()))

    with pm.compile(run, params=params.specs, tokens=pm.spec(*tokens.shape, dtype="i32"), device=device(target)) as exe:
        exe.set_params(dict(params.arrays))
        found: Array = exe.run(tokens=tokens)
        return found


class Batch:
    """A model over a store, whose rows use adapters."""

    def __init__(self, name: str, target: str) -> None:
        self.cfg, self.arch, self.params = model(name)
        self.target = target
        self.store = pm.Store(device(target))
        self.adapters = Adapters(self.store, self.cfg)

    def logits(self, tokens: Array, names: list[str | None]) -> Array:
        """`names` in the order of the places, then those without."""
        layout = self.adapters.layout
        assert layout is not None

        def run(params: Any, tokens: Any, rows: Any) -> Any:
            positions = pm.expand_dims(pm.arange(tokens.shape[1], dtype="i32"), 0) + pm.zeros((tokens.shape[0], 1), "i32")
            params = {**params, **layout.updates(self.cfg, rows, one_end=False)}
            return self.arch.logits(self.cfg, params, self.arch.hidden(self.cfg, params, tokens, positions, WholeSequences()))

        specs = {"tokens": pm.spec(*tokens.shape, dtype="i32"), "rows": pm.spec(layout.places, dtype="i32")}
        held = [None if n is None else self.adapters.acquire(n) for n in names]
        with pm.compile(run, params=self.params.specs, **specs, store=self.store) as exe:
            exe.set_params(dict(self.params.arrays))
            rows = self.adapters.rows((h, tokens.shape[1]) for h in held)
            found: Array = exe.run(tokens=tokens, rows=rows)
        for h in held:
            if h is not None:
                self.adapters.release(h)
        return found

    def alone(self, tokens: Array, adapter: dict[str, LowRank] | None) -> Array:
        params = self.params if adapter is None else attach(self.cfg, self.params, adapter)
        return logits_of(self.arch, self.cfg, params, tokens, self.target)


@pytest.mark.parametrize(("name", "target"), [("llama", "host"), ("gpt2", "host"), ("phi3", "host"), ("llama", "webgpu")])
def test_each_row_has_its_own_adapter(name: str, target: str) -> None:
    batch = Batch(name, target)
    one, two = random_adapter(batch.cfg, 1), random_adapter(batch.cfg, 2, rank=7, targets=("all-linear",))
    batch.adapters.add("one", one)
    batch.adapters.add("two", two)
    found = batch.logits(TOKENS, ["one", "two", "two", None])
    for row, adapter in enumerate((one, two, two, None)):
        wanted = batch.alone(TOKENS[row : row + 1], adapter)[0]
        np.testing.assert_allclose(found[row], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    assert np.abs(found[0] - batch.alone(TOKENS[:1], None)[0]).max() > 0.01
    batch.adapters.close()
    batch.store.close()


def test_adapters_come_and_go_while_others_are_in_use() -> None:
    batch = Batch("llama", "host")
    made = {f"a{k}": random_adapter(batch.cfg, k, rank=4) for k in range(6)}
    batch.adapters.add("a0", made["a0"])
    first = batch.adapters.layout
    batch.adapters.add("a1", made["a1"])
    assert batch.adapters.layout is first, "it had room"
    before = batch.logits(TOKENS[:1], ["a1"])
    used = batch.adapters.acquire("a0")
    batch.adapters.drop("a0")
    assert list(batch.adapters) == ["a1"]
    for name in ("a2", "a3", "a4", "a5"):  # more than the first stacks have room for, while a0 is still used
        batch.adapters.add(name, made[name])
    assert batch.adapters.layout is not first
    places = {batch.adapters._held[n].place for n in batch.adapters}
    assert used.place not in places and len(places) == 5
    np.testing.assert_array_equal(batch.logits(TOKENS[:1], ["a1"]), before)
    wanted = batch.alone(TOKENS[:1], made["a5"])
    np.testing.assert_allclose(batch.logits(TOKENS[:1], ["a5"]), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    batch.adapters.release(used)
    batch.adapters.add("a0", made["a0"])
    assert batch.adapters._held["a0"].place == used.place, "the place was free again"
    assert batch.adapters._held["a0"].serial != used.serial
    batch.adapters.close()
    batch.store.close()


def test_other_layers_and_larger_ranks_make_new_stacks_and_free_the_old() -> None:
    batch = Batch("llama", "host")
    small, large = random_adapter(batch.cfg, 1), random_adapter(batch.cfg, 2, rank=20, targets=("up", "head"))
    batch.adapters.add("small", small)
    batch.adapters.add("large", large)
    layout = batch.adapters.layout
    assert layout is not None and layout.rank == 32 and layout.generation == 1
    assert not [name for name in batch.store if name.startswith("adapters0.")]
    found = batch.logits(TOKENS[:2], ["small", "large"])
    for row, adapter in enumerate((small, large)):
        wanted = batch.alone(TOKENS[row : row + 1], adapter)[0]
        np.testing.assert_allclose(found[row], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    batch.adapters.close()
    batch.store.close()


def test_wrong_adapters_are_named() -> None:
    batch = Batch("llama", "host")
    made = random_adapter(batch.cfg, 1)
    batch.adapters.add("style", made)
    with pytest.raises(UnknownName, match="no adapter 'stile'") as e:
        batch.adapters.acquire("stile")
    assert "the nearest is 'style'" in str(e.value)
    with pytest.raises(InputError, match="an adapter 'style' already"):
        batch.adapters.add("style", made)
    with pytest.raises(InputError, match="changes the token table"):
        batch.adapters.add("table", random_adapter(batch.cfg, 1, targets=("embed",)))
    with pytest.raises(ShapeError, match="has the shapes"):
        path, low = next(iter(made.items()))
        batch.adapters.add("wrong", {path: LowRank(low.a[:, :-1], low.b, 1.0)})
    with pytest.raises(UnknownName, match="does not have"):
        batch.adapters.add("wrong", {"layers.99.mixer.q": low})
    with pytest.raises(UnknownName, match="no adapter 'other'"):
        batch.adapters.drop("other")
    assert list(batch.adapters) == ["style"]
    batch.adapters.close()
    batch.store.close()


# -- in an engine -------------------------------------------------------------------------------------------------------
PROMPTS = ["w5 w17 w9 w42", "w11 w23 w8", "w7 w30 w31 w40 w12"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("models"))


def loaded(folder: Path, target: str = "host") -> Any:
    return pm.load(folder, device=device(target), context=64)


def answers(model: Any, names: Sequence[str | None], tokens: int = 9) -> list[list[int]]:
    """What prompts get that run at once, each with its adapter."""
    with pm.Engine(model, slots=4, context=64) as engine:
        for name in dict.fromkeys(n for n in names if n is not None):
            engine.adapters.add(name, random_adapter(engine.cfg, len(name), rank=2 + len(name), targets=("all-linear",)))
        options: dict[str, Any] = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
        handles = [engine.submit(p, adapter=n, **options) for p, n in zip(PROMPTS, names, strict=True)]
        return [handle.result().tokens for handle in handles]


@pytest.mark.parametrize("target", ["host", "webgpu"])
def test_requests_at_once_have_adapters_of_their_own(folder: Path, target: str) -> None:
    with loaded(folder, target) as model:
        together = answers(model, ["a", "bbb", None])
        assert together == [answers(model, [n] * 3)[k] for k, n in enumerate(["a", "bbb", None])]
        assert together[2] == model.generate(PROMPTS[2], temperature=0, max_tokens=9, ignore_eos=True).tokens
        assert together != answers(model, [None] * 3)


def test_an_adapter_per_request_gives_what_one_for_the_whole_model_gives(folder: Path) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 9, "ignore_eos": True}
    with pm.load(folder, device="host", context=64, lora=GOLDEN) as whole:
        wanted = [whole.generate(p, **options).tokens for p in PROMPTS]
    with loaded(folder) as model:
        plain = [model.generate(p, **options).tokens for p in PROMPTS]
        model.adapters.load("golden", GOLDEN)
        assert [model.generate(p, adapter="golden", **options).tokens for p in PROMPTS] == wanted != plain
        # Prompts that begin alike share no keys and values across adapters.
        assert [model.generate(p, **options).tokens for p in PROMPTS] == plain
        model.adapters.drop("golden")
        with pytest.raises(UnknownName, match="no adapter 'golden'"):
            model.generate(PROMPTS[0], adapter="golden")
        model.adapters.load("golden", GOLDEN, scale=0.0)
        assert [model.generate(p, adapter="golden", **options).tokens for p in PROMPTS] == plain


def test_adapters_are_loaded_and_dropped_while_requests_run(folder: Path) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    with loaded(folder) as model:
        cfg = model.engine.cfg
        model.adapters.add("first", random_adapter(cfg, 1))
        wanted = model.generate(PROMPTS[0], adapter="first", **options).tokens
        stream = model.stream(PROMPTS[0], adapter="first", **options)
        next(stream)
        model.adapters.drop("first")
        for k in range(6):  # more than there is room for: the stacks grow while the stream is open
            model.adapters.add(f"more{k}", random_adapter(cfg, k + 2, rank=3 * k + 1, targets=("all-linear",)))
        pieces = list(stream)
        assert pieces[-1].answer.tokens == wanted
        assert len(model.adapters) == 6 and not model.adapters._leaving


@pytest.mark.parametrize("rank", [4, 2])
def test_dropped_adapters_leave_in_any_order(folder: Path, rank: int) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
    with loaded(folder) as model:
        model.adapters.add("first", random_adapter(model.engine.cfg, 1))
        model.adapters.add("second", random_adapter(model.engine.cfg, 2, rank=rank))
        wanted = model.generate(PROMPTS[0], adapter="first", **options).tokens
        streams = [model.stream(PROMPTS[0], adapter=name, **options) for name in ("first", "second")]
        for stream, name in zip(streams, ("first", "second")):
            next(stream)
            model.adapters.drop(name)
        streams[1].close()
        assert list(streams[0])[-1].answer.tokens == wanted
        assert not model.adapters._leaving


def test_a_wrong_adapter_concerns_its_request_alone(folder: Path) -> None:
    with loaded(folder) as model, pm.Engine(model, slots=2, context=64) as engine:
        good = engine.submit(PROMPTS[0], temperature=0, max_tokens=8, ignore_eos=True)
        with pytest.raises(UnknownName, match="no adapter 'none'"):
            engine.submit(PROMPTS[1], adapter="none")
        assert len(good.result().tokens) == 8
