"""Beam search: the several most likely answers so far go on together, and the most likely one that ends is the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pumice.core.records import dataclass
from pumice.errors import InputError
from pumice.llm.requests import Request, check_sizes, number
from pumice.llm.sampling import TOP_LOGPROBS

if TYPE_CHECKING:
    from pumice.llm.live import LiveSequence, Logprobs

# Candidates of each beam come from the log-probabilities that a token step gives, so that beams and ends together are fewer.
MOST_BEAMS = 16
_OWN = "beam search ranks answers by the model's own probabilities"
# What beams rank is the model's own distribution: options that would change it, and the values that do not.
_NEUTRAL = {
    "temperature": 0,
    "repeat_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": None,
    "forbid": None,
    "grammar": None,
    "json_schema": None,
    "draft": None,
}


class Beam(NamedTuple):
    """An answer so far: its tokens, their log-probabilities, and the sum of these."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    total: float = 0.0

    def __add__(self, more: Any) -> Beam:
        token, logprob = more
        return Beam((*self.tokens, token), (*self.logprobs, logprob), self.total + logprob)


class BeamSearch:
    """Beam search over a distribution that callers give, as `transformers.generate` does it: deterministic, no device in it.

    After each step the best `beams` continuations that do not end go on. Those among the best `beams` of all that end are
    answers, ranked by total log-probability / length ** `length_penalty`, of which the best `beams` are kept. The search is over
    when no beam that goes on would now be better than the worst of these, or at `max_tokens`, where all end.

    >>> search = BeamSearch(beams=2, max_tokens=3, stop_ids=frozenset({0}))
    >>> search.advance([[(5, -0.1), (6, -0.5), (0, -3.0)]])
    [(0, 5), (0, 6)]
    >>> search.advance([[(7, -2.0), (0, -3.0)], [(0, -0.2), (8, -1.0)]])
    [(1, 8), (0, 7)]
    >>> _ = search.advance([[(0, -1.5), (9, -0.9)], [(0, -9.0), (9, -9.0)]])
    >>> search.over, [beam.tokens for beam in search.results]
    (True, [(6, 0), (6, 8, 9)])
    """

    def __init__(self, beams: int, max_tokens: int, stop_ids: frozenset[int], length_penalty: float = 1.0) -> None:
        self.beams, self.max_tokens, self.stop_ids, self.length_penalty = beams, max_tokens, stop_ids, length_penalty
        self.running = [Beam()]
        self._ended: list[tuple[float, Beam]] = []
        self.over = False

    @property
    def results(self) -> list[Beam]:
        """Answers that ended, the best first."""
        return [beam for _, beam in self._ended]

    def advance(self, found: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, int]]:
        """A step: for each running beam the most likely next tokens and their log-probabilities, as many as beams and ends.

        Gives the beams that run now: the number of the one that each continues, and its new token.
        """
        length = len(self.running[0].tokens) + 1
        places = [(k, token, logprob) for k, row in enumerate(found) for token, logprob in row]
        # Equal ones stay in the order of the beams.
        places.sort(key=lambda c: -(self.running[c[0]].total + c[2]))
        ends = [token in self.stop_ids or length == self.max_tokens for _, token, _ in places]
        for (k, token, logprob), end in zip(places[: self.beams], ends):
            if end:
                beam = self.running[k] + (token, logprob)
                self._ended.append((beam.total / length**self.length_penalty, beam))
        self._ended = sorted(self._ended, key=lambda e: -e[0])[: self.beams]
        kept = [place for place, end in zip(places, ends) if not end][: self.beams]
        self.running = [self.running[k] + (token, logprob) for k, token, logprob in kept]
        full = len(self._ended) == self.beams
        self.over = not kept or (full and self.running[0].total / length**self.length_penalty <= self._ended[-1][0])
        return [(k, token) for k, token, _ in kept]


class BeamGroup:
    """The beams of a search as sequences of an engine: `rows`, in the order of the search's running beams.

    `leads` are the sequences that get the answers, the best one first; they do not run themselves.
    """

    def __init__(self, leads: Sequence[LiveSequence]) -> None:
        self.leads = leads
        self.restart()

    def restart(self) -> list[LiveSequence]:
        """Begin with one row after the prompt."""
        r = self.leads[0].request
        self.search = BeamSearch(r.beams, r.max_tokens, r.stop_ids, r.length_penalty)
        self.rows: list[LiveSequence] = [self.leads[0].beam_row(self)]
        self._found: dict[int, list[tuple[int, float]]] = {}
        return self.rows

    @property
    def unwanted(self) -> bool:
        """Whether nobody wants its answers any more."""
        return all(lead.unwanted for lead in self.leads)

    def note(self, row: LiveSequence, logprobs: Logprobs) -> None:
        """What may follow a row, from the most likely tokens on."""
        self._found[row.id] = list(logprobs[1])

    @property
    def noted(self) -> list[LiveSequence]:
        """Rows that ran."""
        return [row for row in self.rows if row.id in self._found]

    def advance(self) -> Iterator[tuple[LiveSequence, int, LiveSequence]]:
        """A step of the search, once all rows ran: each row that goes on, its token, and the row that it continues.

        The first continuation of a row is that row itself; the others are new.
        """
        before, taken = self.rows, set[int]()
        after: list[LiveSequence] = []
        steps = self.search.advance([self._found[row.id] for row in before])
        for k, token in () if self.search.over else steps:
            parent = before[k]
            row = parent.beam_row(self) if k in taken else parent
            taken.add(k)
            after.append(row)
            yield row, token, parent
        self.rows = after
        self._found.clear()


@dataclass(frozen=True)
class BeamOptions:
    """How many beams a call has, and by which power of their length the totals of answers are divided."""

    beams: int = 1
    length_penalty: float = 1.0


def beams_of(options: Mapping[str, Any], n: int = 1) -> BeamOptions:
    """The beams among the options of a call for `n` answers.

    >>> beams_of({"beams": 4}), beams_of({"length_penalty": 2})
    (BeamOptions(beams=4, length_penalty=1.0), BeamOptions(beams=1, length_penalty=2.0))
    >>> beams_of({"beams": 4, "temperature": 0.5})
    Traceback (most recent call last):
    pumice.errors.InputError: [input] beams and temperature do not go together
      hint: beam search ranks answers by the model's own probabilities
    """
    beams, penalty = options.get("beams"), options.get("length_penalty")
    beams = 1 if beams is None else int(number("beams", beams, whole=True))
    if not 1 <= beams <= MOST_BEAMS:
        raise InputError(f"beams is {beams}", hint=f"it must be in 1…{MOST_BEAMS}", name="beams", value=beams)
    penalty = 1.0 if penalty is None else float(number("length_penalty", penalty, whole=False))
    if not math.isfinite(penalty) or abs(penalty) > 10:
        raise InputError(f"length_penalty is {penalty}", hint="it must be in -10…10", name="length_penalty", value=penalty)
    if beams > 1:
        for name, neutral in _NEUTRAL.items():
            if options.get(name) not in (None, neutral, {}, []):
                raise InputError(f"beams and {name} do not go together", hint=_OWN, name=name)
        if n > beams:
            raise InputError(f"n is {n} with {beams} beams", hint="a search has as many answers as beams at most", name="n")
    return BeamOptions(beams, penalty)


def without_rules(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a call without those by which a model's files change its distribution.

    >>> without_rules({"temperature": 0.7, "seed": 3, "repeat_penalty": 1.1})
    {'temperature': 0, 'seed': 3}
    """
    return {"temperature": 0, **{name: value for name, value in given.items() if name not in _NEUTRAL}}


def check_beams(requests: Sequence[Request], vocab: int) -> None:
    """Refuses requests for beam searches that an engine cannot answer.

    >>> from pumice.llm.requests import SamplingParams
    >>> check_beams([Request([5], SamplingParams(temperature=0), 9, beams=4, choice=1)], vocab=100)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] a request for answer 1 of a beam search follows none for answer 0
    """
    for before, r in zip([None, *requests], requests):
        if r.beams == 1 and not r.choice:
            continue
        check_sizes(beams=r.beams)
        most = min(TOP_LOGPROBS, vocab) - len(r.stop_ids)
        if r.beams > most:
            message = f"{r.beams} beams with {len(r.stop_ids)} tokens that end an answer"
            raise InputError(message, hint=f"use at most {max(most, 1)} beams, or fewer stop_tokens", name="beams")
        _, _, penalty, _, _, bias = r.sampling.parts
        if penalty or bias or r.grammar is not None or r.draft is not None:
            raise InputError("beams go neither with penalties and biases nor with a grammar and drafts", hint=_OWN, name="beams")
        if r.choice >= r.beams:
            raise InputError(f"answer {r.choice} of {r.beams} beams", hint="a search has as many answers as beams", name="choice")
        if r.choice and (before is None or replace(before, choice=r.choice) != r or before.choice != r.choice - 1):
            message = f"a request for answer {r.choice} of a beam search follows none for answer {r.choice - 1}"
            raise InputError(message, name="choice")
