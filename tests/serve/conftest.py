"""What tests of the server share: one that serves a tiny language model, an encoder and a cross-encoder, on this machine only."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumice.serve.facts import JsonLog
from pumice.serve.server import ModelServer
from pumice.serve.settings import HostSettings, ServerSettings
from pumice.serve.spec import ModelSpec
from serve.serving import RERANKER, encoder, language_model, language_spec, spec


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[ModelSpec]:
    folder: Path = tmp_path_factory.mktemp("served")
    return [
        language_spec(language_model(folder), slots=8),
        spec(encoder(folder)),
        ModelSpec("rank", str(RERANKER), {"device": "host"}),
    ]


@pytest.fixture(scope="session")
def server(models: list[ModelSpec]) -> Iterator[ModelServer]:
    settings = ServerSettings(port=0, drain_seconds=2, body_bytes=2 << 20, models=HostSettings(back_off=0.05))
    with ModelServer(models, settings, log=JsonLog(quiet=True)) as running:
        wait_until_ready(running)
        yield running


def wait_until_ready(server: ModelServer) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{server.url}/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the server did not become ready")
