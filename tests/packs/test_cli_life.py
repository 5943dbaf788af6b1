"""`pumice pack install|upgrade|list|enable|disable|rollback|remove`: what they do, say, and refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli_harness import pumice, refused
from pack_making import new_key, public_text, small_pack, wasm
from pumice import config
from pumice.cli.main import app
from pumice.errors import InputError, PumiceWarning
from pumice.packs.choice import Choices
from pumice.packs.errors import HealthCheckFailed, KernelNotFound, PackStateError
from pumice.packs.keys import PublicKey
from pumice.packs.store import PackStore
from pumice.packs.trust import TrustStore

KEY = new_key()
SIGNER = PublicKey.parse(public_text(KEY)).fingerprint
BROKEN = wasm('(module (memory (export "memory") 1))')  # without the exports of a kernel


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that trusts KEY, for this process and those that it starts."""
    monkeypatch.setenv(next(s.env for s in config.table() if s.name == "home"), str(tmp_path / "home"))
    TrustStore().add(PublicKey.parse(public_text(KEY)), "tests")
    return tmp_path / "home"


@pytest.fixture
def pack(tmp_path: Path) -> Callable[..., Path]:
    count = iter(range(100))

    def make(**options: Any) -> Path:
        return small_pack(**{"key": KEY, **options}).write_zip(tmp_path / f"{next(count)}.zip")

    return make


def said(*args: object) -> str:
    """What a command says in this process."""
    done = CliRunner().invoke(app, ["pack", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == 0
    return str(done.stdout)


def answer(*args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(*args, "--json"))
    return found


def test_a_packs_life_from_the_command_line(home: Path, pack: Callable[..., Path]) -> None:
    """As users do: each command a process of its own."""
    done = pumice("pack", "install", pack(), PUMICE_HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert f"installed small 1.0.0 (signed by {SIGNER})" in done.stdout
    assert "pumice pack enable small --always" in done.stdout and "checked 2 kernels" in done.stdout
    done = pumice("pack", "upgrade", pack(version="2.0.0"), PUMICE_HOME=str(home))
    assert "upgraded: small 1.0.0 → 2.0.0" in done.stdout and "`pumice pack rollback small` returns to 1.0.0" in done.stdout
    done = pumice("pack", "install", pack(version="3.0.0", files={"relu.wasm": BROKEN}), PUMICE_HOME=str(home))
    refused(done, "did not pass its health check", code=4)
    assert "relu_wasm" in done.stderr and "small 2.0.0 is active, as before" in done.stderr
    done = pumice("pack", "list", PUMICE_HOME=str(home))
    assert "small 2.0.0  enabled: used where it is measured to be faster" in done.stdout
    assert SIGNER in done.stdout and "before    1.0.0" in done.stdout and done.stderr == ""
    refused(pumice("pack", "remove", "smal", PUMICE_HOME=str(home)), "no pack named 'smal' is installed; there are small", code=4)


def test_commands_answer_in_json(home: Path, pack: Callable[..., Path]) -> None:
    assert answer("list") == {"folder": str(home / "packs"), "packs": []}
    first = answer("install", pack())
    assert (first["what"], first["name"], first["before"]) == ("installed", "small", None)
    assert first["pack"]["signer"] == SIGNER and not first["pack"]["insecure"] and first["next"]
    assert [(c["kernel"], c["problem"]) for c in first["checks"]] == [("relu_wasm", ""), ("relu_wgsl", "")]
    second = answer("upgrade", pack(version="2.0.0"))
    assert (second["what"], second["before"]["version"], second["pack"]["version"]) == ("upgraded", "1.0.0", "2.0.0")
    assert second["before"]["digest"] == first["pack"]["digest"]
    assert answer("install", pack(version="2.0.0"))["what"] == "unchanged"
    back = answer("rollback", "small")
    assert (back["what"], back["before"]["version"], back["pack"]["version"]) == ("rolled back", "2.0.0", "1.0.0")
    (listed,) = answer("list")["packs"]
    assert listed["kernels"] == ["relu_wasm", "relu_wgsl"] and listed["problem"] is None
    assert listed["previous"]["version"] == "2.0.0" and listed["digest"] == first["pack"]["digest"]
    assert listed["degraded"] == [] and listed["measured"] == []
    assert answer("remove", "small")["what"] == "removed" and answer("list")["packs"] == []


def test_the_users_word(home: Path, pack: Callable[..., Path]) -> None:
    said("install", pack())
    assert "small 1.0.0 is used wherever it fits" in said("enable", "small", "--always")
    assert "relu_wgsl of small 1.0.0 is used where it is measured" in said(
        "enable", "small", "--kernel", "relu_wgsl", "--measured"
    )
    assert "relu_wasm of small 1.0.0 is not used" in said("disable", "small", "--kernel", "relu_wasm")
    store = PackStore()
    assert (store.use_of("small", "relu_wgsl"), store.use_of("small", "relu_wasm")) == ("measured", "never")
    text = said("list")
    assert "relu_wasm is not used" in text and "relu_wgsl is used where it is measured to be faster" in text
    done = answer("disable", "small")
    assert not done["pack"]["enabled"] and "pumice pack enable small" in done["next"]
    assert "small 1.0.0  disabled: not used" in said("list")
    with pytest.raises(InputError, match="exclude each other"):
        said("enable", "small", "--always", "--measured")
    with pytest.raises(KernelNotFound, match="no kernel 'gelu'"):
        said("enable", "small", "--kernel", "gelu")


def test_an_insecure_pack_is_marked_wherever_it_is_shown(home: Path, pack: Callable[..., Path]) -> None:
    done = pumice("pack", "install", pack(sign=False, key=None), "--insecure", PUMICE_HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert "INSECURE" in done.stderr and "installed small 1.0.0 (INSECURE)" in done.stdout
    assert "INSECURE: nobody's signature was checked" in said("list")
    (listed,) = answer("list")["packs"]
    assert listed["insecure"] and listed["signer"] == ""
    with pytest.warns(PumiceWarning, match="INSECURE"):
        assert answer("enable", "small", "--kernel", "relu_wasm")["pack"]["insecure"]
    said("upgrade", pack(version="2.0.0"))
    assert ", INSECURE): pumice pack rollback small" in said("list")


def test_a_pack_that_is_refused_by_now_is_listed_with_the_reason(home: Path, pack: Callable[..., Path]) -> None:
    said("install", pack())
    TrustStore().revoke("tests")
    assert "REFUSED" in said("list")
    (listed,) = answer("list")["packs"]
    assert listed["problem"]["code"] == "key-revoked" and listed["kernels"] == []
    said("disable", "small")
    said("remove", "small")


def test_a_pack_that_fails_its_check_is_not_installed(home: Path, pack: Callable[..., Path]) -> None:
    with pytest.raises(HealthCheckFailed, match=r"relu_wasm: .*no small is installed, as before"):
        said("install", pack(files={"relu.wasm": BROKEN}))
    with pytest.raises(PackStateError, match="installed that could be upgraded"):
        said("upgrade", pack())
    assert answer("list")["packs"] == []


def test_times_are_listed_and_forgotten_with_their_pack(home: Path, pack: Callable[..., Path]) -> None:
    from types import SimpleNamespace

    digest = answer("install", pack())["pack"]["digest"]
    store = PackStore()
    choices = Choices(store.folder, store.use_of)
    for signature, seconds in (("f32[8]", 1.0), ("f32[9]", 3.0)):
        kernel = SimpleNamespace(pack="small", id="relu_wasm", op="relu", pack_digest=digest)
        choices.record("cpu", kernel, signature, seconds, 2.0)
    assert "measured  2 times, faster than the built-in kernel in 1" in said("list")
    (listed,) = answer("list")["packs"]
    assert [(t["signature"], t["faster"]) for t in listed["measured"]] == [("f32[8]", True), ("f32[9]", False)]
    said("remove", "small")
    assert Choices(store.folder, store.use_of).measured() == []
