"""Full-text queries that stay fast: BM25 is computed for every passage that matches, so rare words decide which those are."""

from __future__ import annotations

import sqlite3

from pumice.assist.words import query_words

# Passages that are ranked for one query, if its words are not all more common; rare words come first, as they say most.
MOST_RANKED = 1500


def ranking_query(connection: sqlite3.Connection, query: str) -> tuple[str, int]:
    """What to match: passages that have one of the rare words, ranked by all; and how many there are, at most.

    Empty if no passage has a word of the query.
    """
    words = query_words(query)
    rare, count = rare_words(connection, words)
    if not rare:
        return "", 0
    chosen, every = (" OR ".join(f'"{w}"' for w in some) for some in (rare, words))
    return (every if len(rare) == len(words) else f"({chosen}) AND ({every})"), count


def rare_words(connection: sqlite3.Connection, words: list[str]) -> tuple[list[str], int]:
    """The words by which passages are ranked, rarest first, and how many passages have them, at most.

    There is at least one, however common, unless no passage has any of them.
    """
    connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.asked USING fts5 (word, tokenize='porter unicode61')")
    connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.asked_terms USING fts5vocab ('temp', 'asked', 'instance')")
    connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.known_terms USING fts5vocab ('main', 'words', 'row')")
    connection.execute("DELETE FROM temp.asked")
    connection.executemany("INSERT INTO temp.asked (rowid, word) VALUES (?, ?)", enumerate(words))
    # The index holds stems: what its own tokeniser makes of a word.
    stems: dict[int, str] = {}
    for term, row in connection.execute("SELECT term, doc FROM temp.asked_terms ORDER BY doc, offset"):
        stems.setdefault(row, term)
    found = []
    for row, term in stems.items():
        counted = connection.execute("SELECT doc FROM temp.known_terms WHERE term = ?", (term,)).fetchone()
        if counted is not None:
            found.append((counted[0], row))
    chosen: list[str] = []
    total = 0
    for count, row in sorted(found):
        if chosen and total + count > MOST_RANKED:
            break
        chosen.append(words[row])
        total += count
    return chosen, total
