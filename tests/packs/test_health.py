"""The health check: kernels that do not load, answer wrongly, trap or never end do not get in; those that are right do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pack_making import RELU_WAT, new_key, public_text, small_pack, wasm
from pumice.packs.errors import HealthCheckFailed, InvalidManifest, PackError
from pumice.packs.health import check_pack
from pumice.packs.keys import PublicKey
from pumice.packs.store import PackStore
from pumice.packs.trust import TrustStore, VerifiedPack, verify_pack

KEY = new_key()
MAX = "(f32.max (f32.load (local.get $from)) (f32.const 0))"
BODY = '(export "kernel_forward") (param $desc i32) (result i32) (local $from i32) (local $to i32) (local $end i32)'

BAD = {
    "a value that is off": (RELU_WAT.replace(MAX, f"(f32.mul {MAX} (f32.const 1.001))"), "beyond their bounds"),
    "another function": (RELU_WAT.replace("f32.max", "f32.min"), "beyond their bounds"),
    "no output": (RELU_WAT.replace(BODY, BODY + " (return (i32.const 0))"), "NaN in other places"),
    "an error code": (RELU_WAT.replace(BODY, BODY + " (return (i32.const 3))"), "kernel-code"),
    "a trap": (RELU_WAT.replace(BODY, BODY + " unreachable"), "unreachable"),
    "an endless loop": (RELU_WAT.replace(BODY, BODY + " (loop $for_ever (br $for_ever))"), "epoch-deadline"),
    "a write outside": (RELU_WAT.replace(BODY, BODY + " (i32.store offset=36 (local.get $desc) (i32.const 1))"), "memory-access"),
    "no exports": ('(module (memory (export "memory") 1))', "invalid-module"),
    "an import": (RELU_WAT.replace("(module", '(module (import "wasi" "x" (func))', 1), "invalid-module"),
}  # fmt: skip


def verified(tmp_path: Path, **options: Any) -> VerifiedPack:
    trust = TrustStore(tmp_path / "trust")
    trust.add(PublicKey.parse(public_text(KEY)))
    return verify_pack(small_pack(key=KEY, **options).pack_files, trust)


def few_ticks(manifest: dict[str, Any]) -> None:
    manifest["kernels"][0]["resource_limits"]["max_epoch_ticks"] = 5


def test_a_pack_that_is_right_passes(tmp_path: Path) -> None:
    found = check_pack(verified(tmp_path))
    assert [(f.kernel, f.checked, f.problem) for f in found] == [
        ("relu_wasm", "compared with the reference", ""),
        ("relu_wgsl", "within the bounds of WGSL", ""),
    ]


@pytest.mark.parametrize("name", BAD)
def test_a_kernel_that_is_wrong_is_found_and_its_pack_not_installed(tmp_path: Path, name: str) -> None:
    text, code = BAD[name]
    assert text != RELU_WAT
    options: dict[str, Any] = {"files": {"relu.wasm": wasm(text)}, "edit": few_ticks}
    (bad, good) = check_pack(verified(tmp_path, **options))
    assert bad.kernel == "relu_wasm" and code in bad.problem and not good.problem
    store = PackStore(tmp_path / "home")
    TrustStore(tmp_path / "home" / "packs" / "trust").add(PublicKey.parse(public_text(KEY)))
    store.install(small_pack(key=KEY).write_zip(tmp_path / "good.zip"))
    with pytest.raises(HealthCheckFailed, match="relu_wasm") as refused:
        store.upgrade(small_pack(key=KEY, version="2.0.0", **options).write_zip(tmp_path / "bad.zip"))
    assert "small 1.0.0 is active, as before" in refused.value.message
    assert [f["kernel"] for f in refused.value.fields["findings"]] == ["relu_wasm"]
    assert store.active("small").manifest.version == "1.0.0"


def test_a_kernel_whose_conditions_leave_out_this_machine_is_only_loaded(tmp_path: Path) -> None:
    def elsewhere(manifest: dict[str, Any]) -> None:
        manifest["kernels"][0]["pumice"]["when"] = ["caps.f16"]

    found = check_pack(verified(tmp_path, edit=elsewhere))[0]
    assert found.checked == "loaded, as no call fits its conditions here" and not found.problem


def test_a_kernel_without_an_op_is_only_loaded(tmp_path: Path) -> None:
    def alone(manifest: dict[str, Any]) -> None:
        del manifest["kernels"][0]["pumice"]["implements"]

    found = check_pack(verified(tmp_path, edit=alone))[0]
    assert (found.checked, found.problem) == ("loaded", "")


def test_a_new_op_is_compared_with_its_own_reference(tmp_path: Path) -> None:
    reference = 'pumice graph 1\nsymbols n\n%0 : f32[n] = input "x"\n%1 : f32[n] = {}(%0)\noutputs "result"=%1\n'

    def new_op(op: str) -> Any:
        def edit(manifest: dict[str, Any]) -> None:
            kernel = manifest["kernels"][0]
            kernel["inputs"][0]["shape"] = kernel["outputs"][0]["shape"] = ["n"]
            del kernel["pumice"]["implements"]
            kernel["pumice"]["op"] = {"name": "mine", "operands": ["x"], "reference": reference.format(op),
                                      "samples": [{"x": [7]}], "tolerance": 1e-6}  # fmt: skip

        return edit

    found = check_pack(verified(tmp_path, edit=new_op("relu")))[0]
    assert (found.checked, found.problem) == ("compared with the reference", "")
    assert "beyond their bounds" in check_pack(verified(tmp_path, edit=new_op("neg")))[0].problem


def test_wgsl_that_no_compiler_should_see_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match="relu_wgsl"):
        check_pack(verified(tmp_path, files={"relu.wgsl": b"fn main() { var a: array<u32, 2000000>; }"}))


def test_an_op_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    def unknown(manifest: dict[str, Any]) -> None:
        manifest["kernels"][0]["pumice"]["implements"] = "no_such_op"

    with pytest.raises(PackError, match="no_such_op"):
        check_pack(verified(tmp_path, edit=unknown))
