"""What fits: the bytes per token are those of the states that an engine has."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest

from pumice.cli.fits import fit
from pumice.core.caps import Caps
from pumice.errors import InputError
from pumice.llm.engine import Engine
from pumice.llm.fits import cache_bytes_per_token, fitting_tokens
from pumice.llm.requests import Request, Timings
from tiny_models import GOLDENS, GREEDY, PROMPT, tokens_of


def cache_rows(e: Engine) -> dict[str, int]:
    """Bytes of a token in each state of keys and values."""
    found = {}
    for name in e._store:
        entry = e._store[name]
        if entry.kind == "state" and name.rpartition(".")[2] in ("k", "v", "kv", "k_scale", "v_scale"):
            found[name] = math.prod(entry.type.shape[1:]) * entry.type.dtype.itemsize
    return found


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3", "lfm2"])
def test_bytes_per_token_are_those_of_the_engine(name: str, dtype: str, engine: Callable[..., Engine]) -> None:
    e = engine(name, cache_dtype=dtype)
    assert sum(cache_rows(e).values()) == cache_bytes_per_token(e.cfg, dtype) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_a_cache_that_fits_keeps_every_state_within_a_binding(name: str, engine: Callable[..., Engine]) -> None:
    e = engine(name, "webgpu")
    largest = max(cache_rows(e).values())
    count = fitting_tokens(e.cfg, "f32", e.device.caps, 0, None)
    assert count is not None and count * largest <= e.device.caps.max_binding_bytes < (count + 1) * largest


def test_memory_and_weights_limit_what_fits() -> None:
    [found] = fit("tiny", GOLDENS / "llama", Caps.preset("host"), 1 << 20)
    left = (1 << 20) - found["weights_bytes"]
    assert found["model"] == "tiny" and found["weights_bytes"] > 0
    assert found["tokens"] == {dtype: left // size for dtype, size in found["bytes_per_token"].items()}
    [small] = fit("tiny", GOLDENS / "llama", Caps.preset("host"), 100)
    assert set(small["tokens"].values()) == {0}
    [gpu] = fit("tiny", GOLDENS / "llama", Caps.preset("browser-baseline"), None)
    assert gpu["tokens"]["f32"] < gpu["tokens"]["f16"] < gpu["tokens"]["q8"]
    assert fit("an encoder", GOLDENS / "bert", Caps.preset("host"), 1 << 20) == []
    assert fit("no model", GOLDENS / "texts.json", Caps.preset("host"), 1 << 20) == []


def cache_bytes(e: Engine) -> int:
    """What all states of keys and values take, and those of slots with their snapshots."""
    held = {n for n in e._store if n.startswith(("cache.", "cache-slots.")) and e._store[n].kind == "state"}
    return sum(math.prod(e._store[n].type.shape) * e._store[n].type.dtype.itemsize for n in held)


@pytest.mark.parametrize("dtype", ["f32", "q8"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma3n", "lfm2"])
def test_a_budget_in_bytes_is_kept_and_used(name: str, dtype: str, engine: Callable[..., Engine]) -> None:
    e = engine(name, context=128, slots=2, memory="300kB", cache_dtype=dtype)
    page = cache_bytes_per_token(e.cfg, dtype) * e.layout.page
    assert 300_000 - page < cache_bytes(e) <= 300_000
    larger = engine(name, context=128, slots=2, memory="0.5 MiB", cache_dtype=dtype)
    assert cache_bytes(e) < cache_bytes(larger) <= 1 << 19
    assert tokens_of(e, PROMPT, 5) == tokens_of(larger, PROMPT, 5)


@pytest.mark.parametrize("memory", ["", "2", "GiB", "-1GB", "1 gallon", 0, 2.5, True])
def test_other_budgets_are_refused(memory: object, engine: Callable[..., Engine]) -> None:
    with pytest.raises(InputError, match="memory is"):
        engine("llama", memory=memory)


def test_a_budget_without_room_for_a_page_is_refused(engine: Callable[..., Engine]) -> None:
    with pytest.raises(InputError, match="a page alone takes") as found:
        engine("llama", memory="1kB")
    assert found.value.fields["name"] == "memory"
    with pytest.raises(InputError, match="with the states of 4 slots") as found:
        engine("lfm2", slots=4, memory="9kB")
    least = re.search(r"at least (\d+) bytes", str(found.value))
    assert least and engine("lfm2", slots=4, memory=f"{least[1]}B").layout.pages == (2,)


def test_pools_of_windows_are_as_large_as_windows_need(engine: Callable[..., Engine]) -> None:
    """Gemma 3's golden has windows of 8 tokens: three sequences see few pages, however long they are."""
    longer = {"context": 1024, "config": {"max_position_embeddings": 1024}}
    e, one = engine("gemma3", slots=3, chunk=32, **longer), engine("gemma3", slots=1, **longer)
    assert e.layout.windows == (None, 8) and e.layout.pages == (65, 5 * 3 + 1)
    shapes = {n: e._store[n].type.shape[0] for n in e._store if n.startswith("cache.")}
    assert set(shapes.values()) == {65 * 32, 16 * 32}
    prompts = [[(7 * k + 3 * i) % 50 + 4 for i in range(200 + 60 * k)] for k in range(4)]
    got: list[list[int]] = [[] for _ in prompts]
    for event in e.stream([Request(p, GREEDY, 12) for p in prompts]):
        got[event.request].append(event.token)
    assert got == [tokens_of(one, p, 12) for p in prompts]
    # A prompt that was answered is still cached, windows included.
    timings = Timings()
    assert [event.token for event in e.stream([Request(prompts[-1], GREEDY, 12)], timings=timings)] == got[-1]
    assert timings.reused[0] > 300
