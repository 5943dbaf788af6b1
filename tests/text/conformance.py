"""llama.cpp's vocabularies with the ids that it expects, from the source package of llama-cpp-python on PyPI (MIT)."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from pumice import config
from pumice.errors import PumiceError
from pumice.sources import index, pip_client
from pumice.sources.files import file_sha256
from pumice.sources.http import Http
from pumice.sources.lock import exclusive
from pumice.sources.progress import FetchMeter

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
ARCHIVE = "llama_cpp_python-0.3.36.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
INSIDE = "llama_cpp_python-0.3.36/vendor/llama.cpp/models/ggml-vocab-"
SEPARATOR = "\n__ggml_vocab_test__\n"


def vocabularies() -> Path:
    """The folder of the vocabularies and their cases; fetched once, as the 77 MB are worth keeping."""
    folder = config.home / "tests" / f"{PACKAGE}-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():
            try:
                _fetch(folder)
            except PumiceError as error:
                pytest.skip(f"{ARCHIVE} cannot be fetched ({error.message}); run where PyPI can be reached")
    return folder


def cases(vocabulary: Path) -> list[tuple[str, list[int]]]:
    """Texts and the ids that llama.cpp expects of them."""
    inputs, outputs = vocabulary.with_name(vocabulary.name + ".inp"), vocabulary.with_name(vocabulary.name + ".out")
    texts = inputs.read_bytes().decode().removesuffix(SEPARATOR).split(SEPARATOR)
    rows = [[int(i) for i in line.split()] for line in outputs.read_text().removesuffix("\n").split("\n")]
    assert len(texts) == len(rows)
    return list(zip(texts, rows))


def _fetch(folder: Path) -> None:
    pip = pip_client.settings()
    http = Http(pip.cert, pip.proxy)
    places = [(place, "") for place in pip.find_links] + [(place, PACKAGE) for place in pip.indexes]
    links = [link for place, below in places for link in index._links(place, below, pip, http) if link.filename == ARCHIVE]
    if not links:
        pytest.skip(f"the package index has no {ARCHIVE}; run where PyPI can be reached")
    archive = folder.parent / ARCHIVE
    http.download(links[0].url, archive, FetchMeter(None))
    assert file_sha256(archive) == SHA256
    partial = folder.with_name(folder.name + ".part")
    partial.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.startswith(INSIDE):
                content = tar.extractfile(member)
                assert content is not None
                (partial / Path(member.name).name).write_bytes(content.read())
    os.replace(partial, folder)
    archive.unlink()
