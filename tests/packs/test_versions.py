"""Versions of PEP 440 and semver in one order, ranges of packs, and the features of runtimes and devices."""

from __future__ import annotations

from typing import Any

import pytest

from pack_making import small_pack
from pumice import config
from pumice.backends.null.device import NullDevice
from pumice.core.caps import Caps
from pumice.packs import versions
from pumice.packs.errors import MissingFeature, RuntimeTooNew, RuntimeTooOld, VersionIncompatible
from pumice.packs.kernels import pack_kernels
from pumice.packs.manifest import KernelEntry
from pumice.packs.trust import VerifiedPack, check_content
from pumice.packs.versions import Version, check_features, check_range
from pumice.run.packs import Pack, kernels_in_use

# Each line is one version in all the ways to write it; lines are in order.
ORDER = [
    ["0.9", "0.9.0", "v0.9", "00.9"],
    ["1.0.0.dev1", "1.0.0-dev.1", "1.dev1", "1.0.0.DEV1"],
    ["1.0.0.dev2", "1.0.0-dev.2+build.5"],
    ["1.0.0-0"],
    ["1.0.0-alpha"],
    ["1.0.0a1.dev3"],
    ["1.0.0a1", "1.0.0-alpha.1", "1.0.0.alpha.1", "1.0.0_a_1", "1.0.0-a.1", "1.0.0-alpha.1+x.y"],
    ["1.0.0a1.post1"],
    ["1.0.0-alpha.1.1"],
    ["1.0.0a2"],
    ["1.0.0-alpha.10", "1.0.0a10"],
    ["1.0.0-alpha.beta"],
    ["1.0.0b0", "1.0.0b", "1.0.0-beta.0"],
    ["1.0.0-beta.11"],
    ["1.0.0rc1", "1.0.0-rc.1", "1.0.0c1", "1.0.0.preview1"],
    ["1.0.0-x-y-z.-"],
    ["1.0.0", "1", "1.0", "1.0.0.0", "1.0.0+local.1", "v1.0.0+build-7", "0!1"],
    ["1.0.0.post1.dev1"],
    ["1.0.0.post1", "1.0.0.r1", "1.post1"],
    ["1.0.1.dev0"],
    ["1.0.1"],
    ["1.0.10"],
    ["1.1"],
    ["10.0.0"],
    ["1!0.1"],
]


def test_one_order_for_both_forms() -> None:
    parsed = [[Version.parse(text) for text in line] for line in ORDER]
    for i, line in enumerate(parsed):
        assert len({*line}) == 1, ORDER[i]
        for later in parsed[i + 1 :]:
            assert all(a < b and not b < a and a != b for a in line for b in later), (ORDER[i], later[0].text)


def test_the_order_of_pep_440_is_that_of_packaging() -> None:
    """`packaging` comes with pytest; nothing of Pumice needs it."""
    from packaging.version import InvalidVersion
    from packaging.version import Version as Theirs

    texts = [text for line in ORDER for text in line if "-" not in text]
    texts += [f"{n}{stage}" for n in ("2.0", "2.1.0", "3!1") for stage in ("", "a1", "b2", "rc3", ".post4", ".dev5", "a1.dev2")]
    for a in texts:
        for b in texts:
            try:
                one, two = Theirs(a.partition("+")[0]), Theirs(b.partition("+")[0])
            except InvalidVersion:
                pytest.fail(f"{a} or {b} is none for packaging")
            assert (Version.parse(a) < Version.parse(b)) == (one < two), (a, b)


@pytest.mark.parametrize(
    "text",
    ["", " ", "1.", ".1", "1..2", "a", "1.0-1", "1.0.0-", "1.0.0-01", "1.0.0-a..b", "01.0.0-alpha", "1.0.0+", "1.0.0 ", "1.0\n",
     "1.0.0-alpha_1", "１.０", "1,0", "-1", "1.0.0a1b2", "latest", "*", ">=1.0", "1.0.0.dev1.post1", "1" * 65],
)  # fmt: skip
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(VersionIncompatible):
        Version.parse(text)


@pytest.mark.parametrize(
    ("low", "high", "here", "error"),
    [
        ("0.1.0", "1.0.0", "0.1.0", None),
        ("0.1.0", "1.0.0", "1.0.0", None),
        ("0.1.0", "1.0.0", "1.0.0rc1", None),
        ("0.1.0", "1.0.0", "1.0.0+cpu", None),
        ("0.1.0", "1.0.0", "1.0.1", RuntimeTooNew),
        ("0.1.0", "1.0", "1.0.0.post1", RuntimeTooNew),
        ("0.1.0-alpha.1", "1.0.0", "0.1.0a1", None),
        ("0.1.0-alpha.2", "1.0.0", "0.1.0a1", RuntimeTooOld),
        ("0.1.0", "1.0.0", "0.1.0.dev3", RuntimeTooOld),
        ("0.2", "1.0.0", "0.1.9", RuntimeTooOld),
        ("0.2", "0.2", "0.2.0", None),
        ("0.3", "0.2", "0.2.0", VersionIncompatible),
        ("0.3", "0.2", "0.1.0", VersionIncompatible),
        ("new", "0.2", "0.1.0", VersionIncompatible),
        ("0.1", "", "0.1.0", VersionIncompatible),
    ],
)
def test_ranges(low: str, high: str, here: str, error: type[Exception] | None) -> None:
    if error is None:
        check_range(low, high, here)
    else:
        with pytest.raises(error) as caught:
            check_range(low, high, here)
        assert type(caught.value) is error


# -- features -----------------------------------------------------------------------------------------------------------
def kernel(target: str = "host", platforms: dict[str, Any] | None = None, **wgsl: Any) -> KernelEntry:
    entry: dict[str, Any] = {
        "id": "k", "name": "K", "path": f"k.{'wasm' if target == 'host' else 'wgsl'}", "hash": "sha256:" + "0" * 64,
        "entry_point": "kernel_forward" if target == "host" else "main", "inputs": [],
        "outputs": [{"name": "result", "dtype": "f32", "shape": [4]}], "resource_limits": {}, "platforms": platforms or {},
        "pumice": {"target": target, **({"wgsl": {"workgroup": 64, "groups": "1", **wgsl}} if target == "webgpu" else {})},
    }  # fmt: skip
    return KernelEntry.model_validate(entry)


def platform(version: str = "1", *features: str) -> dict[str, Any]:
    return {"min_version": version, "features": list(features), "aot_available": False}


@pytest.mark.parametrize(
    "fitting",
    [
        kernel(),
        kernel(platforms={"wasmtime": platform("30", "simd", "bulk-memory")}),
        kernel(platforms={"wasmtime": platform(), "wamr": platform("2", "gc")}),
        kernel("webgpu"),
        kernel("webgpu", features=["f16"]),
        kernel("webgpu", {"webgpu": platform("1", "subgroups")}, features=["f16"]),
    ],
)
def test_features_that_a_runtime_has(fitting: KernelEntry) -> None:
    check_features(fitting)


@pytest.mark.parametrize(
    ("strange", "feature"),
    [
        (kernel(platforms={"wasmtime": platform("30", "simd", "threads")}), "threads"),
        (kernel(platforms={"wasmtime": platform("30", "SIMD")}), "SIMD"),
        (kernel(platforms={"wamr": platform()}), "wamr"),
        (kernel(platforms={"wasmtime": platform("9999")}), "wasmtime"),
        (kernel("webgpu", features=["f64"]), "f64"),
        (kernel("webgpu", {"webgpu": platform("1", "ray-queries")}), "ray-queries"),
        (kernel("webgpu", {"webgpu": platform("2")}), "webgpu"),
        (kernel("webgpu", {"wasmtime": platform()}), "wasmtime"),
    ],
)
def test_features_that_a_runtime_never_has(strange: KernelEntry, feature: str) -> None:
    with pytest.raises(MissingFeature) as caught:
        check_features(strange)
    assert caught.value.fields == {"kernel": "k", "feature": feature}


def test_a_runtime_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise versions.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(versions.metadata, "version", version)
    with pytest.raises(MissingFeature, match="needs wasmtime 30") as caught:
        check_features(kernel(platforms={"wasmtime": platform("30")}))
    assert "pumice[packs]" in caught.value.hint


def test_a_version_of_a_runtime_that_cannot_be_read() -> None:
    with pytest.raises(VersionIncompatible):
        check_features(kernel(platforms={"wasmtime": platform("30-or-so")}))


def test_features_of_a_device_are_conditions_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    """The pack is verified on every machine; the kernel is skipped on a device that lacks what it needs."""

    def needs_both(manifest: dict[str, Any]) -> None:
        manifest["kernels"][1]["platforms"] = {"webgpu": platform("1", "subgroups")}
        manifest["kernels"][1]["pumice"]["wgsl"]["features"] = ["f16"]

    manifest, files = check_content(small_pack(edit=needs_both).pack_files)
    verified = VerifiedPack(manifest, files, "0" * 64, "")
    half = next(k for k in pack_kernels(verified) if k.id == "relu_wgsl")
    plain = Caps.preset("browser-baseline")
    assert half.features == ("f16", "subgroups")
    assert half.lacking(plain) == "the device has no f16, subgroups"
    assert half.lacking(plain.with_(f16=True)) == "the device has no subgroups"
    assert half.lacking(plain.with_(f16=True, subgroups=True)) == ""
    # Skipped with the reason, and without a warning: nothing is wrong with the kernel.
    with config.override(debug=1):
        assert kernels_in_use(NullDevice(plain), [Pack(verified, (half,))]) == ()
    assert "small/relu_wgsl is skipped: the device has no f16, subgroups" in capsys.readouterr().err
