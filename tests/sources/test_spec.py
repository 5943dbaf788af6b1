"""Specs, aliases and paths: what they mean, and what is said about those that mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumice.errors import InputError, UnknownName
from pumice.sources import NotFound, catalogue, resolve
from pumice.sources.spec import HubSpec, PathSpec, PypiSpec, parse


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("pypi:a==1", PypiSpec("a", "1")),
        ("pypi:A_b.c==1.0rc1+x/p/q/", PypiSpec("a-b-c", "1.0rc1+x", "p/q")),
        ("hf:o/r", HubSpec("o", "r")),
        ("hf:o/r.v2-x@main", HubSpec("o", "r.v2-x", "main")),
        ("hf:o/r@refs%2Fpr%2F3/a/b.gguf", HubSpec("o", "r", "refs/pr/3", "a/b.gguf")),
        ("dir/model.gguf", PathSpec(Path("dir/model.gguf"))),
    ],
)
def test_specs(text: str, want: object) -> None:
    got = parse(text)
    assert got == want
    if not isinstance(got, PathSpec):
        assert parse(got.text) == got


@pytest.mark.parametrize(
    "text",
    ["pypi:", "pypi:a", "pypi:a==", "pypi:a>=1", "pypi:==1", "pypi:a==1/../x", "pypi:a==1//etc", "pypi:a==1/b\\c", "pypi:-r==1",
     "pypi:--index-url=x==1", "pypi:a==-1", "hf:", "hf:o", "hf:o/", "hf:/r", "hf:o/r@", "hf:o/r/../x", "hf:../r", "hf:o/r\0", "",
     " ", "a\0b"],
)  # fmt: skip
def test_specs_that_are_none(text: str) -> None:
    with pytest.raises(InputError) as e:
        parse(text)
    assert e.value.exit_code == 2


def test_names_in_the_cache_are_plain_and_differ() -> None:
    specs = ["pypi:a==1", "pypi:a==1/x", "pypi:a==1/y", "hf:o/r", "hf:o/r@main", "hf:o/r@a%2Fb", "hf:o--r/x", "hf:o/r--x"]
    names = [s.name for s in map(parse, specs) if not isinstance(s, PathSpec)]
    assert len(set(names)) == len(specs)
    assert all(Path(n).name == n and not n.startswith(".") for n in names)


def test_the_catalogue_is_pinned() -> None:
    for alias in catalogue():
        spec = parse(alias.spec)
        assert isinstance(spec, PypiSpec) and spec.text == alias.spec
        assert all(len(h) == 64 for h in (alias.sha256, *alias.files.values()))
        assert alias.licence and alias.what and alias.bytes > 0


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="did you mean 'smollm2'"):
        resolve("SmolLM-2")
    with pytest.raises(UnknownName, match="smollm2, minilm"):
        resolve("zzzzzz")


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        resolve(tmp_path / "no.gguf")
    with pytest.raises(NotFound, match="hf:owner/repo"):
        resolve("owner/repo")
    with pytest.raises(InputError, match="holds no weights"):
        resolve(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match="pickle"):
        resolve(tmp_path)
    with pytest.raises(InputError, match="no GGUF or safetensors"):
        resolve(tmp_path / "pytorch_model.bin")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"a\.gguf, b\.gguf"):
        resolve(tmp_path)
    (tmp_path / "b.gguf").unlink()
    assert resolve(tmp_path).path == tmp_path / "a.gguf"
    (tmp_path / "model.safetensors").write_bytes(b"x")
    found = resolve(str(tmp_path), verify=True)
    assert found.path == tmp_path and all(f.sha256 for f in found.files)
    assert Path(found) == tmp_path


def test_a_split_file_counts_as_one(tmp_path: Path) -> None:
    for i in (1, 2):
        (tmp_path / f"m-0000{i}-of-00002.gguf").write_bytes(b"GGUF")
    found = resolve(tmp_path)
    assert found.path.name == "m-00001-of-00002.gguf" and found.nbytes == 8
