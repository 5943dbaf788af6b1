"""Splats from and to files."""

from __future__ import annotations

import os
from pathlib import Path

from pumice.formats.splats import read_splats, write_splats
from pumice.splat.scene import PARAMS, Splats


def read(path: str | os.PathLike[str]) -> Splats:
    """The splats of a .ply file of 3DGS or of a .splat file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Splats.of([[0, 0, 0]], [[1, 1, 1]]), Path(folder, "one.splat"))
    ...     len(read(Path(folder, "one.splat")))
    1
    """
    found = read_splats(Path(path))
    return Splats(**{name: getattr(found, name) for name in PARAMS})


def write(splats: Splats, path: str | os.PathLike[str]) -> None:
    """Write splats as the ending of the name says: .ply with everything, .splat with 8 bits a colour and no view dependence."""
    write_splats(Path(path), splats.arrays())
