"""Compiled modules in the user's cache: used again, and made again where anything about them is not as it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumice import config
from pumice.packs.wasm import cache
from pumice.packs.wasm.engine import WasmEngine
from pumice.packs.wasm.kernel import WasmKernel
from wasm_making import COPY, entry, wat

X = np.arange(16, dtype=np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PUMICE_HOME", str(tmp_path / "home"))
    assert config.home == tmp_path / "home"
    return tmp_path / "home" / "wasm"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often modules are compiled, and how often compiled bytes are loaded."""
    counts = {"compile": 0, "load": 0}
    for name in counts:
        original = getattr(WasmEngine, name)

        def counting(self: WasmEngine, data: bytes, name: str = name, original: Any = original) -> Any:
            counts[name] += 1
            return original(self, data)

        monkeypatch.setattr(WasmEngine, name, counting)
    return counts


def use(module: bytes = wat(COPY)) -> None:
    kernel = WasmKernel(entry(), module)
    out = np.zeros_like(X)
    kernel([X], {}, [out])
    kernel.close()
    assert out.tolist() == X.tolist()


def test_a_module_is_compiled_once(folder: Path, counted: dict[str, int]) -> None:
    use()
    assert counted == {"compile": 1, "load": 0}
    (kept,) = folder.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0
    use()
    assert counted == {"compile": 1, "load": 1}


def test_another_module_has_another_entry(folder: Path, counted: dict[str, int]) -> None:
    use()
    use(wat(f"(nop) {COPY}"))
    assert counted == {"compile": 2, "load": 0}
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("at", [0, 31, 32, 100, -1])
def test_a_changed_byte_is_never_loaded(folder: Path, counted: dict[str, int], at: int) -> None:
    use()
    (kept,) = folder.iterdir()
    good = kept.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 1
    kept.write_bytes(bad)
    use()
    assert counted == {"compile": 2, "load": 0}, "bytes that fail the check must not reach the loader"
    assert kept.read_bytes() == good, "and are replaced"


@pytest.mark.parametrize("content", [b"", b"x" * 1000, b"\x7fELF" + bytes(1000)])
def test_other_content_is_never_loaded(folder: Path, counted: dict[str, int], content: bytes) -> None:
    use()
    (kept,) = folder.iterdir()
    kept.write_bytes(content)
    use()
    assert counted == {"compile": 2, "load": 0}


def test_an_entry_under_another_name_is_never_loaded(folder: Path, counted: dict[str, int]) -> None:
    """Code of one module in place of another's."""
    use()
    (first,) = folder.iterdir()
    other = wat(f"(nop) {COPY}")
    use(other)
    (second,) = set(folder.iterdir()) - {first}
    shutil.copy(first, second)
    use(other)
    assert counted == {"compile": 3, "load": 0}


def test_what_wasmtime_does_not_take_is_compiled_again(folder: Path, counted: dict[str, int]) -> None:
    """An entry that is whole, and not of this version of Wasmtime."""
    from pumice.core.kept import keep

    use()
    (kept,) = folder.iterdir()
    keep(kept, b"compiled by another version")
    use()
    assert counted == {"compile": 2, "load": 1}


def test_a_folder_that_others_can_write_is_not_used(folder: Path, counted: dict[str, int]) -> None:
    use()
    folder.chmod(0o777)
    with pytest.warns(match="can be written by other users"):
        use()
    assert counted == {"compile": 2, "load": 0}


def test_version_processor_and_settings_are_in_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        version, switches = "50.0.1", {"wasm_simd": True}

    library: Any = Library()
    names = {cache._key(library, "d")}
    library.version = "51.0.0"
    names.add(cache._key(library, "d"))
    library.switches = {"wasm_simd": False}
    names.add(cache._key(library, "d"))
    names.add(cache._key(library, "e"))
    monkeypatch.setattr(cache, "_processor", lambda: "another")
    names.add(cache._key(library, "e"))
    assert len(names) == 5
