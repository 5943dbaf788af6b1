"""Pages alone: references, contents, eviction, and matches of prompts, also as properties over random operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumice.errors import InputError
from pumice.llm.pages import NO_PAGE, Match, PagePool, TokenChain, match_prefix

SIZE = 4


def filled(pool: PagePool, tokens: list[int], key: Hashable = ()) -> list[int]:
    """Pages with the content of `tokens`, held once."""
    pages = pool.allocate(-(-len(tokens) // pool.page_size))
    assert pages is not None
    chain = TokenChain(tokens, pool.page_size, key)
    for index, page in enumerate(pages):
        pool.keep(page, chain, index, min(pool.page_size, len(tokens) - index * pool.page_size))
    return pages


def test_page_0_is_never_allocated() -> None:
    pool = PagePool(5, SIZE)
    assert pool.capacity == 4 and sorted(pool.allocate(4) or []) == [1, 2, 3, 4]
    assert pool.allocate(1) is None and pool.allocate(0) == []
    with pytest.raises(InputError, match="1 pages"):
        PagePool(1, SIZE)


def test_a_match_has_whole_pages_and_then_the_page_that_agrees_longest() -> None:
    pool = PagePool(20, SIZE)
    first = filled(pool, list(range(10)))
    other = filled(pool, [0, 1, 2, 3, 4, 9, 9, 9])
    assert pool.match(range(10)) == Match(tuple(first[:2]), 10, first[2])
    assert pool.match([*range(8), 50]) == Match(tuple(first[:2]), 8, None)
    assert pool.match([0, 1, 2, 3, 4, 9, 9, 8]) == Match((first[0],), 7, other[1])
    assert pool.match([0, 1, 2, 3, 4, 5, 0]) == Match((first[0],), 6, first[1])
    assert pool.match([5, 0, 1, 2, 3]) == pool.match([]) == Match()
    # The same tokens after others are other keys and values.
    assert pool.match([9, 9, 9, 9, 4, 5, 6, 7]).tokens == 0


def test_a_key_separates() -> None:
    pool = PagePool(9, SIZE)
    filled(pool, list(range(8)), key="a")
    assert pool.match(range(8), "a").tokens == 8 and pool.match(range(8), "b").tokens == pool.match(range(8)).tokens == 0


def test_content_of_equal_pages_is_kept_once() -> None:
    pool = PagePool(9, SIZE)
    first, second = filled(pool, list(range(6))), filled(pool, list(range(6)))
    pool.free(second)
    assert pool.statistics == (2, 0, 6)
    pool.free(first)
    assert pool.statistics == (0, 2, 6)


def test_a_page_that_fills_up_replaces_what_was_known_of_it() -> None:
    pool = PagePool(9, SIZE)
    tokens = list(range(6))
    pages = filled(pool, tokens)
    tokens += [6, 7]
    chain = TokenChain(tokens, SIZE)
    pool.keep(pages[1], chain, 1, 4)
    assert pool.match(range(8)) == Match(tuple(pages), 8, None)
    assert pool.match(range(6)) == Match((pages[0],), 6, pages[1])


def test_the_page_released_longest_ago_makes_room_first_and_tails_before_heads() -> None:
    pool = PagePool(7, SIZE)
    old, new = list(range(12)), list(range(100, 112))
    for tokens in (old, new):
        pool.free(filled(pool, tokens))
    assert pool.statistics == (0, 6, 0)
    (held,) = pool.allocate(1) or []
    assert pool.match(old).tokens == 8 and pool.match(new).tokens == 12
    # Using a page makes it recent.
    again = pool.match(old)
    pool.fork(again.pages)
    pool.free(again.pages)
    pool.allocate(3)
    assert pool.match(old).tokens == 8 and pool.match(new).tokens == 0
    pool.free([held])
    assert pool.statistics.free == 1


def test_a_window_needs_only_what_the_next_token_sees() -> None:
    full, window = PagePool(20, SIZE), PagePool(20, SIZE, window=6)
    tokens = list(range(20))
    whole, recent = filled(full, tokens), filled(window, tokens)
    assert window.release_unseen(recent, 20) == 3 and recent[:3] == [NO_PAGE] * 3
    assert window.statistics == (2, 3, 14)
    chain = TokenChain(tokens, SIZE)
    # Released pages are cached still: any prefix matches.
    assert [m.tokens for m in match_prefix([full, window], chain, 11)] == [11, 11]
    window.free(window.allocate(17) or [])
    assert [m.tokens for m in match_prefix([full, window], chain, 11)] == [0, 0]
    found = match_prefix([full, window], chain, 20)
    assert found[0] == Match(tuple(whole), 20, None) and found[1] == Match((0, 0, 0, *recent[3:]), 20, None)


operation = st.tuples(st.sampled_from(["start", "share", "end", "fill"]), st.integers(0, 5), st.integers(1, 14))


@settings(max_examples=150)
@given(st.lists(operation, max_size=60), st.integers(3, 12))
def test_references_are_those_held_and_matches_have_the_right_content(operations: list[tuple[str, int, int]], pages: int) -> None:
    """Sequences hold pages; `contents` is what a device would have in them."""
    pool = PagePool(pages, SIZE)
    bases = [[base, *(base * i % 7 for i in range(14))] for base in range(3)]
    contents: dict[int, tuple[int, ...]] = {}
    held: list[list[int]] = []
    for what, which, length in operations:
        tokens = bases[which % 3][:length]
        if what == "start":
            new = pool.allocate(-(-length // SIZE))
            if new is not None:
                for index, page in enumerate(new):
                    contents[page] = tuple(tokens[: (index + 1) * SIZE])
                    pool.keep(page, TokenChain(tokens, SIZE), index, len(tokens[index * SIZE : (index + 1) * SIZE]))
                held.append(new)
        elif what == "share":
            match = pool.match(tokens)
            pool.fork(match.pages)
            held.append(list(match.pages))
            assert match.tokens <= length
            for index, page in enumerate(match.pages):
                assert contents[page] == tuple(tokens[: (index + 1) * SIZE])
            if match.partial is not None:
                assert contents[match.partial][: match.tokens] == tuple(tokens[: match.tokens])
        elif what == "end" and held:
            pool.free(held.pop(which % len(held)))
        elif what == "fill":
            # Pages without known content come back as free ones.
            new = pool.allocate(min(which, pool.available)) or []
            contents.update(dict.fromkeys(new, ()))
            pool.free(new)
        counts = Counter(page for one in held for page in one)
        assert all(pool.references(page) == counts[page] for page in range(1, pages))
        used, cached, free = pool.statistics
        assert used == len(counts) and used + cached + free == pool.capacity
        assert not set(pool._free) & set(pool._idle) and not counts.keys() & {*pool._free, *pool._idle}
        assert {*pool._by_digest.values()} <= pool._content.keys() and {*pool._idle} <= pool._content.keys()
    for one in held:
        pool.free(one)
    assert pool.statistics.used == 0 and len(pool.allocate(pool.capacity) or []) == pool.capacity
    assert not pool._content and not pool._by_digest and not pool._after
