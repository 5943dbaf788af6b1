"""Architectures of other packages: found by entry point, loaded only when named, and never in place of a built-in one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pumice as pm
from pumice.errors import InputError, PluginError, PumiceWarning, UnknownName
from pumice.models import plugins
from pumice.models.config import ModelArchConfig
from pumice.models.registry import get_architecture
from tiny_models import checkpoint, write_tokenizer

# A bert under another name, with an entry of config.json of its own.
PEBBLE = """
from dataclasses import replace

from pumice.models.registry import get_architecture

BERT = get_architecture("bert")


def read_hf(c):
    return replace(BERT.read_hf(c), model_type="pebble", norm_eps=c.positive("pebble_eps", 1e-12))


ARCHITECTURE = replace(BERT, read_hf=read_hf, defaults={**BERT.defaults, "hidden_size": 32})
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path; what it adds to the registry and to the modules is forgotten afterwards."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins, "_found", {})
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def install(folder: Path, package: str, source: str, entries: str, version: str = "1.0") -> None:
    """A package as an installer leaves it: its module, and the metadata beside it."""
    (folder / f"{package}.py").write_text(source)
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entries)


def entry(name: str, value: str) -> str:
    return f"[pumice.models]\n{name} = {value}\n"


def pebble_checkpoint(folder: Path, **config: object) -> Path:
    made = checkpoint("bert", folder, closing=True)
    old = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**old, "model_type": "pebble", **config}))
    return made


def test_an_installed_package_adds_an_architecture(packages: Path, tmp_path: Path) -> None:
    """Installed by pip from a wheel, then loaded by `pm.load` as a built-in one is."""
    wheel, info = tmp_path / "pumice_pebble-0.3-py3-none-any.whl", "pumice_pebble-0.3.dist-info"
    files = {
        "pebble.py": PEBBLE,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: pumice-pebble\nVersion: 0.3\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entry("pebble", "pebble:ARCHITECTURE"),
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--target", packages, wheel], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    [found] = [p for p in plugins.installed_plugins() if p.name == "pebble"]
    assert found.package == "pumice-pebble 0.3" and "pebble" not in sys.modules

    folder = pebble_checkpoint(tmp_path)
    with pm.load(folder, device="host") as model:
        assert model.info["architecture"] == "pebble" and model.info["task"] == "embed"
        got = model.embed(["w5 w6 w7", "w8"])
    shutil.rmtree(folder)
    with pm.load(checkpoint("bert", tmp_path, closing=True), device="host") as model:
        np.testing.assert_allclose(got, model.embed(["w5 w6 w7", "w8"]), atol=1e-6)
    # Its own entry of config.json counts: it is not read as a bert.
    cfg = ModelArchConfig.from_hf({"model_type": "pebble", "pebble_eps": 0.25, "hidden_size": 32, "num_attention_heads": 4})
    assert cfg.model_type == "pebble" and cfg.norm_eps == 0.25 and get_architecture("pebble").kind == "encoder"


def test_a_broken_plugin_is_named_and_breaks_no_other(packages: Path) -> None:
    install(packages, "pebble", PEBBLE, entry("pebble", "pebble:ARCHITECTURE"))
    install(packages, "cracked", "import no_such_module", entry("cracked", "cracked:ARCHITECTURE"))
    install(packages, "leaving", "raise SystemExit(3)", entry("leaving", "leaving:ARCHITECTURE"))
    install(packages, "hollow", "", entry("hollow", "hollow:ARCHITECTURE"))
    install(packages, "wrong", "ARCHITECTURE = 7", entry("wrong", "wrong:ARCHITECTURE"))
    for name, said in (
        ("cracked", "No module named 'no_such_module'"),
        ("leaving", "SystemExit: 3"),
        ("hollow", "has no attribute 'ARCHITECTURE'"),
        ("wrong", "is of type int"),
    ):
        with pytest.raises(PluginError, match=said) as e:
            get_architecture(name)
        assert f"{name} 1.0" in e.value.message and e.value.fields["package"] == f"{name} 1.0" and e.value.hint
    assert get_architecture("pebble").kind == "encoder" and get_architecture("bert").kind == "encoder"


def test_metadata_that_cannot_be_read_hides_no_other(packages: Path) -> None:
    install(packages, "garbled", "", "[pumice.models]\nno equals sign\n")
    install(packages, "pebble", PEBBLE, entry("pebble", "pebble:ARCHITECTURE"))
    with pytest.warns(PumiceWarning, match=r"garbled-1\.0\.dist-info cannot be read"):
        assert get_architecture("pebble").kind == "encoder"


def test_no_plugin_replaces_a_built_in_architecture(packages: Path) -> None:
    source = PEBBLE + "\nraise RuntimeError('this must never be imported')\n"
    names = "".join(f"{name} = shadow:ARCHITECTURE\n" for name in ("llama", "xlm-roberta", "mistral"))
    install(packages, "shadow", source, "[pumice.models]\n" + names)
    assert get_architecture("llama").kind == "causal" and get_architecture("xlm-roberta") is get_architecture("roberta")
    with pytest.raises(UnknownName, match="'mistral' is not supported"):
        ModelArchConfig.from_gguf({"general.architecture": "mistral"}, {})
    assert "shadow" not in sys.modules


def test_two_plugins_of_one_name_are_refused(packages: Path) -> None:
    install(packages, "pebble", PEBBLE, entry("pebble", "pebble:ARCHITECTURE"))
    install(packages, "granular", PEBBLE, entry("pebble", "granular:ARCHITECTURE"))
    with pytest.raises(PluginError, match=r"both announce the architecture 'pebble'") as e:
        get_architecture("pebble")
    assert "pebble 1.0" in e.value.message and "granular 1.0" in e.value.message


def test_the_same_package_twice_on_the_path_counts_once(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(packages, "pebble", PEBBLE, entry("pebble", "pebble:ARCHITECTURE"), version="2.0")
    older = tmp_path / "older"
    older.mkdir()
    install(older, "pebble", "raise RuntimeError", entry("pebble", "pebble:ARCHITECTURE"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(older)])
    assert [p.package for p in plugins.installed_plugins() if p.name == "pebble"] == ["pebble 2.0"]
    assert get_architecture("pebble").kind == "encoder"


def test_a_plugin_whose_configs_lead_elsewhere_is_named(packages: Path) -> None:
    """Everything looks the architecture up by the config's model_type: another one would run in its place, unnoticed."""
    install(
        packages, "pebble", PEBBLE.replace('model_type="pebble"', 'model_type="bert"'), entry("pebble", "pebble:ARCHITECTURE")
    )
    with pytest.raises(PluginError, match="'pebble' makes a config with the model_type 'bert'"):
        ModelArchConfig.from_hf({"model_type": "pebble", "num_attention_heads": 4})


def test_plugins_count_among_the_known_names(packages: Path) -> None:
    install(packages, "pebble", PEBBLE, entry("pebble", "pebble:ARCHITECTURE"))
    with pytest.raises(UnknownName, match="'pebbles' is not supported") as e:
        get_architecture("pebbles")
    assert e.value.hint.startswith("the nearest is 'pebble'; supported: bamba bert") and "pebble" not in sys.modules
    with pytest.raises(UnknownName, match="'lama' is not supported") as e:
        get_architecture("lama")
    assert e.value.hint.startswith("the nearest is 'llama'")


def test_gguf_files_need_a_plugin_that_reads_them(packages: Path) -> None:
    source = PEBBLE.replace("replace(BERT, ", "replace(BERT, read_gguf=None, ")
    install(packages, "pebble", source, entry("pebble", "pebble:ARCHITECTURE"))
    with pytest.raises(InputError, match="the plug-in of the architecture 'pebble' reads no GGUF files"):
        ModelArchConfig.from_gguf({"general.architecture": "pebble"}, {})


def test_a_task_that_no_model_does_is_refused(tmp_path: Path) -> None:
    folder = checkpoint("llama", tmp_path)
    for task in ("transcribe", "speak", "see", "embed"):
        with pytest.raises(InputError, match=f"cannot do the task '{task}', it can generate") as e:
            pm.load(folder, task=task, device="host")
        assert e.value.fields["tasks"] == ("generate",) and e.value.cli_hint == f"pumice run {folder} …"
    with pytest.raises(UnknownName, match="there is no task 'rank'") as e:
        pm.load("a model that is never looked for", task="rank")
    assert e.value.hint.startswith("the nearest is 'rerank'; tasks: generate embed")
    write_tokenizer(folder, 128)
    with pm.load(folder, "generate", device="host", context=32) as model:
        assert model.info["task"] == "generate"
