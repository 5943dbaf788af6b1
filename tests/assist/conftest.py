"""What tests of the assistant share: a tiny language model of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pumice as pm
from pumice.llm.model import LanguageModel
from serve.serving import language_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_model(tmp_path_factory.mktemp("assist"))


@pytest.fixture(scope="session")
def model(model_folder: Path) -> Iterator[LanguageModel]:
    with pm.load(model_folder, device="host", context=2048) as loaded:
        yield loaded


# Run by test_adapters.py, in a process with other plug-ins.
collect_ignore = ["langchain_suite"]
