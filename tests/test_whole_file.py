"""Files that are replaced as a whole: what was there stays until the new one is complete, and devices and links survive."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pumice.core.whole_file import is_stream, replacing, write_whole

posix = pytest.mark.skipif(os.name == "nt", reason="needs links and pipes of POSIX; run it on Linux or macOS")


def test_the_old_file_stays_where_writing_fails(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_whole(file, "old")
    with pytest.raises(RuntimeError), replacing(file) as out:
        out.write(b"half")
        raise RuntimeError
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["a"]
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "new")
    assert file.read_text() == "old"


def test_long_names_and_durable_files(tmp_path: Path) -> None:
    file = tmp_path / ("n" * 250)
    write_whole(file, b"new", durable=True)
    assert file.read_bytes() == b"new" and len(os.listdir(tmp_path)) == 1


@posix
def test_links_lead_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    file, link, dangling = tmp_path / "a", tmp_path / "link", tmp_path / "dangling"
    write_whole(file, "old")
    link.symlink_to(file)
    dangling.symlink_to(tmp_path / "b")
    write_whole(link, "new")
    write_whole(dangling, "made")
    assert link.is_symlink() and file.read_text() == "new"
    assert dangling.is_symlink() and (tmp_path / "b").read_text() == "made"


@posix
def test_rights_of_files_are_kept(tmp_path: Path) -> None:
    file, secret = tmp_path / "a", tmp_path / "secret"
    write_whole(file, "old")
    file.chmod(0o640)
    write_whole(file, "new")
    write_whole(secret, "key", mode=0o600)
    assert [stat.S_IMODE(f.stat().st_mode) for f in (file, secret)] == [0o640, 0o600]


@posix
def test_pipes_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, "text")
    reader.join(30)
    assert read == [b"text"] and stat.S_ISFIFO(pipe.stat().st_mode) and is_stream(pipe)


@posix
@pytest.mark.parametrize("to_file", [False, True])
def test_standard_output_is_written_to(tmp_path: Path, to_file: bool) -> None:
    code = (
        "import sys; from pumice.core.whole_file import write_whole; print(1, flush=True); write_whole('/dev/stdout', 'two\\n')"
    )
    if to_file:
        with (tmp_path / "out").open("wb") as out:
            subprocess.run([sys.executable, "-c", code], stdout=out, check=True, timeout=60)
        assert (tmp_path / "out").read_text() == "1\ntwo\n"
    else:
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout == b"1\ntwo\n"
    assert os.path.islink("/dev/stdout") or sys.platform != "linux"


@posix
def test_devices_are_never_replaced() -> None:
    write_whole("/dev/null", "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
