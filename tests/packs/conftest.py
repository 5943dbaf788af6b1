"""What the tests of packs share: a little pack that is whole, and a maker of others."""

from __future__ import annotations

import pytest

from pack_making import SmallPack
from pack_making import small_pack as make_small_pack


@pytest.fixture
def small_pack() -> SmallPack:
    """A valid pack, signed with a fresh key; `pack_making.small_pack` makes others."""
    return make_small_pack()
