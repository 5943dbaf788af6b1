"""What tests of language models share: engines that are closed when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pumice.llm.engine import Engine
from tiny_models import make_engine


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(*args: Any, **kwargs: Any) -> Engine:
        made.append(make_engine(*args, **kwargs))
        return made[-1]

    yield make
    for e in made:
        e.close()
