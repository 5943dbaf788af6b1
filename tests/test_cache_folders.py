"""The cache's folders: made for their owner alone, and nothing in them is trusted that somebody else could have put there."""

from __future__ import annotations

import os
import pwd
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from pumice import config
from pumice.backends.host.native import jit
from pumice.backends.tuning import save_user_entry, tuning_for, user_file
from pumice.core import kept
from pumice.core.caps import Caps
from pumice.core.kept import keep, read_kept
from pumice.core.private import make_private, open_private, read_plain
from pumice.errors import FormatError, InputError, PumiceWarning
from pumice.llm.plans import plan_path
from pumice.sources.cache import Cache

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
SOMEBODY = 54321


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees the reports that a new process would make."""
    monkeypatch.setattr(kept, "_reported", set())


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def at_once(call: Callable[[], Any]) -> Any:
    """The result of a call that must not wait for anybody."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call).result(timeout=20)
    finally:
        pool.shutdown(wait=False)


def silent(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


# -- how folders are made ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o777], ids=oct)
def test_new_folders_are_the_owners_alone(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        assert keep(tmp_path / "home" / "kernels" / "x" / "a", b"text")
        make_private(tmp_path / "home" / "models" / "kind")
    for name in ("home", "home/kernels", "home/kernels/x", "home/models", "home/models/kind"):
        assert mode(tmp_path / name) == 0o700
    path = tmp_path / "home" / "kernels" / "x" / "a"
    assert mode(path) == 0o600 and read_kept(path) == b"text"


def test_every_cache_makes_private_folders(tmp_path: Path) -> None:
    entry = {"names": ["gpu"], "cores": 1, "groups": [1], "tiles": {"8x8x8 1x1": [1.0]}}
    with umask(0), config.override(home=tmp_path / "home"):
        save_user_entry("x", entry)
        path = plan_path(Caps.preset("host"), 1)
        assert path is not None and keep(path, b"text")
        with Cache(config.home).work("pypi", "tiny"):
            pass
    folders = [p for p in (tmp_path / "home", *(tmp_path / "home").rglob("*")) if p.is_dir()]
    assert len(folders) > 3 and {mode(p) for p in folders} == {0o700}


def test_reading_an_entry_takes_memory_for_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "a"
    keep(path, b"text")
    tracemalloc.start()
    try:
        assert read_kept(path) == b"text"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_nothing_is_left_half_written(tmp_path: Path) -> None:
    keep(tmp_path / "kept" / "a", b"one")
    keep(tmp_path / "kept" / "a", b"two")
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["a"] and read_kept(tmp_path / "kept" / "a") == b"two"


# -- folders and files of others --------------------------------------------------------------------------------------
def is_refused(path: Path, match: str) -> None:
    """Neither read nor written, and reported once."""
    before = sorted(path.parent.iterdir())
    with pytest.warns(PumiceWarning, match=match) as caught:
        assert read_kept(path) is None
    assert "PUMICE_HOME" in str(caught[0].message)
    assert silent(lambda: read_kept(path)) is None
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize("bits", [0o770, 0o707, 0o777, 0o1777], ids=oct)
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "kept" / "a"
    keep(path, b"text")
    path.parent.chmod(bits)
    is_refused(path, "written by other users")
    assert not silent(lambda: keep(path, b"other"))
    path.parent.chmod(0o755)
    assert read_kept(path) == b"text"


@pytest.mark.parametrize("bits", [0o660, 0o606], ids=oct)
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "kept" / "a"
    keep(path, b"text")
    path.chmod(bits)
    is_refused(path, "written by other users")
    assert keep(path, b"fresh") and read_kept(path) == b"fresh"


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a folder to somebody else: run the tests as root")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "kept" / "a"
    keep(path, b"text")
    os.chown(path.parent if what == "folder" else path, SOMEBODY, SOMEBODY)
    is_refused(path, "belongs to another user")
    assert silent(lambda: keep(path, b"fresh")) == (what == "file")


# -- entries ----------------------------------------------------------------------------------------------------------
def test_an_entry_under_another_name_is_none(tmp_path: Path) -> None:
    path = tmp_path / "kernels" / "a.o"
    keep(path, b"text")
    for other in (path.with_name("b.o"), tmp_path / "plans" / "a.o"):
        make_private(other.parent)
        other.write_bytes(path.read_bytes())
        assert read_kept(other) is None
    assert read_kept(path) == b"text"


def put_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def put_huge(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 1 << 40)


ODD: dict[str, Callable[[Path], None]] = {
    "fifo": put_fifo,
    "link to a device": lambda p: p.symlink_to("/dev/zero"),
    "link to a good entry": lambda p: p.symlink_to("good"),
    "link to itself": lambda p: p.symlink_to(p.name),
    "folder": lambda p: p.mkdir(),
    "huge": put_huge,
    "empty": lambda p: p.touch(0o600),
}


@pytest.mark.parametrize("kind", ODD)
def test_only_plain_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "kept" / "a"
    keep(path.with_name("good"), b"text")
    ODD[kind](path)
    assert at_once(lambda: silent(lambda: read_kept(path))) is None
    if kind == "folder":
        return
    assert at_once(lambda: keep(path, b"fresh")) and read_kept(path) == b"fresh"
    assert read_kept(path.with_name("good")) == b"text"  # a link is replaced, not followed


@pytest.mark.parametrize("kind", ["fifo", "link to a device", "huge"])
def test_manifests_and_tuning_are_plain_files_too(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "models" / "pypi" / "tiny"
    make_private(folder)
    ODD[kind](folder / "manifest.json")
    assert at_once(lambda: Cache(tmp_path).find("pypi", "tiny")) is None
    with pytest.raises(OSError, match=r"no plain file|more than"):
        at_once(lambda: read_plain(folder / "manifest.json", 1 << 20))
    with config.override(home=tmp_path):
        ODD[kind](user_file())

    def ask() -> Any:
        with config.override(home=tmp_path):
            return tuning_for("NVIDIA H200")

    with pytest.raises(FormatError, match=r"tuning\.json"):
        at_once(ask)


# -- no folder at all -------------------------------------------------------------------------------------------------
def run_once() -> list[float]:
    with pm.compile(lambda x: x * 2.0, x=pm.spec("N"), device="host") as exe:
        found: list[float] = exe.run(x=[1.0, 2.0]).tolist()
        return found


@pytest.mark.parametrize("home", ["/proc/pumice", "/dev/null", "/dev/null/pumice", "/nonexistent/\udcff"])
def test_a_home_that_cannot_be_written_is_reported_once(home: str) -> None:
    if home.startswith("/nonexistent") and IS_ROOT:
        home = "/proc/\udcff"  # root could make the other one
    with config.override(home=home):
        path = plan_path(Caps.preset("host"), 1)
        assert path is not None and silent(lambda: read_kept(path)) is None
        with pytest.warns(PumiceWarning, match="cannot be written.*each start makes them again.*PUMICE_HOME"):
            assert not keep(path, b"text")
        assert not silent(lambda: keep(path, b"text"))
        assert silent(run_once) == [2.0, 4.0]


@pytest.mark.skipif(IS_ROOT, reason="root writes to read-only folders: run the tests as another user")
def test_a_read_only_home_is_reported_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.warns(PumiceWarning, match="cannot be written"):
        assert not keep(tmp_path / "kept" / "a", b"text")
    tmp_path.chmod(0o700)


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whom the system does not know, as in a container that was started with some number."""

    def unknown(_: int) -> Any:
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("PUMICE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_a_user_without_a_home_folder(homeless: None) -> None:
    with pytest.raises(InputError, match="no home folder") as caught:
        assert config.home
    assert "PUMICE_HOME" in caught.value.hint
    with pytest.warns(PumiceWarning, match="no home folder.*set PUMICE_HOME"):
        assert plan_path(Caps.preset("host"), 1) is None
    assert silent(lambda: plan_path(Caps.preset("host"), 1)) is None
    assert silent(run_once) == [2.0, 4.0]
    assert tuning_for("NVIDIA H200") is not None  # what Pumice ships


@pytest.mark.skipif(not jit.available(), reason="numba is not installed: pip install 'pumice[cpu]'")
def test_kernels_work_without_a_home_folder(homeless: None) -> None:
    from pumice.backends.host.native.machine_code import MachineCode

    with pytest.warns(PumiceWarning, match="no home folder"):
        code = MachineCode()
    assert silent(lambda: code.address("map_add")) != 0


# -- libraries that do not load ---------------------------------------------------------------------------------------
def hidden(error: Exception) -> Exception:
    """As llvmlite reports it: the reason is behind a guess at every possible one."""
    outer = OSError("Could not find/load shared object file. This could mean many things.")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (hidden(OSError("libllvmlite.so: failed to map segment from shared object")), "ulimit -v"),
        (ImportError("cannot import name 'binding'"), "reinstall numba"),
    ],
    ids=["no room", "broken"],
)
def test_kernels_that_do_not_load_are_reported(error: Exception, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "pumice.backends.host.native.machine_code":
                raise error

    import pumice.backends.host.native as package

    monkeypatch.delattr(package, "machine_code", raising=False)
    monkeypatch.delitem(sys.modules, "pumice.backends.host.native.machine_code", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.setattr(jit, "available", lambda: True)
    with pytest.warns(PumiceWarning, match=f"do not load.*several times slower.*{hint}"):
        assert jit._machine_code.__wrapped__() is None


def test_the_command_line_shows_warnings_as_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    from pumice.cli.main import _show_warning

    _show_warning(PumiceWarning("the folder is not yours"), PumiceWarning, "kept.py", 1)
    assert capsys.readouterr().err == "pumice: the folder is not yours\n"


def test_a_durable_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_anything_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut leaves: the order is the file's content, its rename, the folder that has the name."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        done.append("folder" if os.path.isdir(fd) else f"file of {os.fstat(fd).st_size} bytes")
        fsync(fd)

    def replaced(*args: Any, **kwargs: Any) -> None:
        done.append("rename")
        replace(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    with open_private(tmp_path) as folder:
        folder.write("a", b"text", durable=True)
        assert done == ["file of 4 bytes", "rename", "folder"]
        folder.write("a", b"more text")
        assert done[3:] == ["rename"]
        assert folder.read("a", 100) == b"more text" and folder.names() == ["a"]
        folder.remove("a")
        folder.remove("a")
        assert folder.names() == []
