"""The chain of a kernel and its fallbacks, and the record of what failed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pumice.packs import errors
from pumice.packs.degraded import degraded, forget
from pumice.packs.fallback import KernelChain
from pumice.packs.manifest import Manifest
from pumice.packs.trust import VerifiedPack
from wasm_making import COPY, OUT, PARAMS, entry, wat, word

X = np.arange(16, dtype=np.float32)
BAD = {
    "endless": "(loop $again (br $again)) (i32.const 0)",
    "recursive": "(call $forward (local.get $d))",
    "unreachable": "(unreachable)",
    "outside": "(i32.load (i32.const -4))",
    "writes its input": f"(i32.store {word(0)} (i32.const 77)) {COPY}",
    **{f"returns {code}": f"(i32.const {code})" for code in range(1, 8)},
}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    forget()
    yield
    forget()


def chain_of(*bodies: str | bytes, **fields: Any) -> KernelChain:
    """A pack whose kernels k0, k1, … have these bodies, each the fallback of the one before it."""
    kernels, files = [], {}
    for i, body in enumerate(bodies):
        kernels.append(entry(id=f"k{i}", path=f"k{i}.wasm", resource_limits={"max_epoch_ticks": 2}, **fields))
        files[f"k{i}.wasm"] = body if isinstance(body, bytes) else wat(body)
    manifest = Manifest.model_construct(
        name="chained", kernels=tuple(kernels), fallbacks={f"k{i}": f"k{i + 1}" for i in range(len(bodies) - 1)}
    )
    return KernelChain(VerifiedPack(manifest, files, "", "", True), "k0")


@pytest.mark.parametrize("what", BAD)
def test_the_fallback_gives_the_right_answer(what: str) -> None:
    chain = chain_of(BAD[what], COPY)
    out = np.zeros_like(X)
    chain([X], {}, [out])
    assert out.tolist() == X.tolist()
    (found,) = degraded()
    assert (found.pack, found.kernel, found.count) == ("chained", "k0", 1)
    assert found.code != "pack-kernel"
    chain.close()


@pytest.mark.parametrize("module", [b"", wat(info=""), wat(memory='(memory (export "memory") 2000)')])
def test_a_module_that_cannot_be_loaded_is_tried_once(module: bytes) -> None:
    chain = chain_of(module, COPY)
    call = chain.prepare([X], {}, [X])
    for _ in range(3):
        out = np.zeros_like(X)
        call([X], [out])
        assert out.tolist() == X.tolist()
    assert [(d.kernel, d.count) for d in degraded()] == [("k0", 3)]


def test_several_fallbacks() -> None:
    chain = chain_of("(unreachable)", "(i32.const 5)", COPY)
    out = np.zeros_like(X)
    chain([X], {}, [out])
    assert out.tolist() == X.tolist()
    assert [(d.kernel, d.code) for d in degraded()] == [("k0", "unreachable"), ("k1", "kernel-code")]


def test_all_fail() -> None:
    chain = chain_of("(unreachable)", "(i32.const 5)")
    out = np.full_like(X, -1)
    with pytest.raises(errors.PackKernelFailed) as caught:
        chain([X], {}, [out])
    assert (out == -1).all()
    assert caught.value.fields["codes"] == ("unreachable", "kernel-code")
    assert "not implemented" in caught.value.hint


def test_a_kernel_that_keeps_failing_is_not_tried_again() -> None:
    """It adds up its calls in nothing that the runtime wipes: the time it takes. An endless loop is tried once."""
    chain = chain_of(BAD["endless"], COPY)
    call = chain.prepare([X], {}, [X])
    out = np.zeros_like(X)
    call([X], [out])
    first = chain.links[0].error
    assert isinstance(first, errors.EpochDeadline)
    for _ in range(10):
        call([X], [out])
    assert chain.links[0].error is first
    assert [(d.kernel, d.count) for d in degraded()] == [("k0", 11)]


def test_a_kernel_that_fails_now_and_then_is_tried_again() -> None:
    """It refuses inputs that begin with a positive number."""
    picky = f"{COPY} (drop) (f32.gt (f32.load {word(0)}) (f32.const 0))"
    chain = chain_of(picky, "(i32.const 5)")
    out = np.zeros_like(X)
    for _ in range(5):
        chain([-X - 1], {}, [out])
        with pytest.raises(errors.PackKernelFailed):
            chain([X + 1], {}, [out])
        if chain.links[1].error is not None:
            chain.links[1].error = None
    assert chain.links[0].error is None
    for _ in range(3):
        with pytest.raises(errors.PackKernelFailed):
            chain([X + 1], {}, [out])
    assert isinstance(chain.links[0].error, errors.KernelCode)


def test_a_fallback_gets_the_params_it_has() -> None:
    chain = chain_of(
        "(unreachable)",
        f"(i32.store {word(OUT)} (i32.load {word(PARAMS)})) (i32.const 0)",
        params={"p": {"type": "f32", "default": 1.0}},
    )
    out = np.zeros_like(X)
    chain([X], {"p": 2.5}, [out])
    assert out[0] == 2.5
    chain([X], {"p": 3.5, "q": 1}, [out])
    assert out[0] == 3.5
    assert {d.code for d in degraded()} == {"unreachable", "invalid-parameters"}


def test_a_fallback_that_needs_an_attribute_which_nobody_gives() -> None:
    declared = {"eps": {"type": "f32", "default": 1.0}}
    chain = chain_of("(unreachable)", COPY, params=declared, pumice={"params": {"eps": "attr.eps"}})
    out = np.zeros_like(X)
    chain([X], {"eps": 0.5}, [out])
    assert out.tolist() == X.tolist()
    with pytest.raises(errors.PackKernelFailed) as caught:
        chain([X], {}, [out])
    assert "attr.eps" in caught.value.hint


def test_counting_from_several_threads() -> None:
    chain = chain_of("(i32.const 5)", COPY)
    call = chain.prepare([X], {}, [X])

    def work() -> None:
        out = np.zeros_like(X)
        for _ in range(50):
            call([X], [out])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(d.kernel, d.count) for d in degraded()] == [("k0", 200)]
