"""The autotuner's search: which knob values to measure next. Optuna's only importer; nothing is measured here.

A space is the product of the windows that a proposal names, less what its constraints forbid. The proposal's own values
come first and then one step along each knob, since they rest on the profile; Optuna's TPE sampler chooses the rest. The
search ends when the space is exhausted, when its allowance is spent, or on a plateau: two batches in a row without a
gain above the noise, which hands the direction back to the proposer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Knob
from kernelcrew.record import Record

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial as Drawn

Values = dict[str, int]
Ending = Literal["", "exhausted", "allowance", "plateau"]

PLATEAU_BATCHES = 2
"""Batches without a gain after which a direction is given back."""
DRAWS = 40
"""Draws for one fresh configuration before the rest of a small space is simply listed."""


class Space(Record):
    """Where the tuner may look."""

    knobs: tuple[Knob, ...]
    """With their windows."""
    constraints: tuple[str, ...] = ()
    """Expressions over the knobs that must hold, for instance `MR * NR <= 28`."""

    def allows(self, values: Mapping[str, int]) -> bool:
        """Whether `values` lie in the windows and break no constraint over knobs that are here."""
        inside = all(values[k.name] in k.window for k in self.knobs)
        return inside and all(_holds(text, values) for text in self.constraints)

    def all(self) -> Iterator[Values]:
        """Every allowed configuration."""
        names = [k.name for k in self.knobs]
        for chosen in product(*(sorted(set(k.window)) for k in self.knobs)):
            values = dict(zip(names, chosen, strict=True))
            if self.allows(values):
                yield values

    def first(self) -> Values:
        """The proposal's own values."""
        return {k.name: k.value for k in self.knobs}


class Search:
    """One search in one space. Ask for a batch, measure it elsewhere, tell the scores."""

    def __init__(self, space: Space, seed: int, allowance: int) -> None:
        """`allowance` bounds the configurations that are told. Scores are ratios: higher is better."""
        self._space = space
        self._allowance = allowance
        self._study = _study(seed)
        self._told: dict[tuple[int, ...], float | None] = {}
        self._open: dict[tuple[int, ...], Drawn] = {}
        self._prior = _prior(space)
        self._left = sum(1 for _ in space.all())
        self._batches_without_gain = 0
        self.best: tuple[Values, float] | None = None

    @property
    def ending(self) -> Ending:
        """Why the search is over; empty while it is not."""
        if len(self._told) >= self._left:
            return "exhausted"
        if len(self._told) >= self._allowance:
            return "allowance"
        return "plateau" if self._batches_without_gain >= PLATEAU_BATCHES else ""

    def ask(self, most: int) -> list[Values]:
        """The next configurations, none of them asked before: at most `most`, none when the search is over."""
        if self.ending:
            return []
        wanted = min(most, self._allowance - len(self._told), self._left - len(self._told))
        asked: list[Values] = []
        while len(asked) < wanted:
            asked.append(self._next())
        return asked

    def tell(self, scores: Sequence[tuple[Values, float | None]], margin: float) -> bool:
        """Scores of a batch, None for what could not be built or run. Whether it gained more than `margin`."""
        gained, begun = False, self.best is not None
        for values, score in scores:
            key = self._key(values)
            drawn = self._open.pop(key, None)
            if drawn is not None:
                self._close(drawn, score)
            self._told[key] = score
            if score is not None and (self.best is None or score > self.best[1] * (1 + margin)):
                gained = gained or self.best is not None
                self.best = (dict(values), score)
        if scores and begun:
            self._batches_without_gain = 0 if gained else self._batches_without_gain + 1
        return gained

    def _next(self) -> Values:
        while self._prior:
            values = self._prior.pop(0)
            if self._fresh(values):
                return self._drawn(values)
        for _ in range(DRAWS):
            drawn = self._study.ask()
            values = {k.name: self._suggest(drawn, k) for k in self._space.knobs}
            if self._fresh(values) and self._space.allows(values):
                self._open[self._key(values)] = drawn
                return values
            self._close(drawn, None)
        return self._drawn(next(v for v in self._space.all() if self._fresh(v)))

    def _drawn(self, values: Values) -> Values:
        """A configuration chosen here, made known to Optuna."""
        self._study.enqueue_trial({k.name: sorted(set(k.window)).index(values[k.name]) for k in self._space.knobs})
        drawn = self._study.ask()
        for knob in self._space.knobs:
            self._suggest(drawn, knob)
        self._open[self._key(values)] = drawn
        return values

    def _suggest(self, drawn: Drawn, knob: Knob) -> int:
        """Values are drawn by their place in the window: doublings are steps of one size."""
        window = sorted(set(knob.window))
        return window[drawn.suggest_int(knob.name, 0, len(window) - 1)]

    def _close(self, drawn: Drawn, score: float | None) -> None:
        from optuna.trial import TrialState

        if score is None:
            self._study.tell(drawn, state=TrialState.FAIL)
        else:
            self._study.tell(drawn, score)

    def _fresh(self, values: Values) -> bool:
        return self._key(values) not in self._told and self._key(values) not in self._open

    def _key(self, values: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(values[k.name] for k in self._space.knobs)


def _study(seed: int) -> Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=4, multivariate=True, constant_liar=True)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _prior(space: Space) -> list[Values]:
    """The proposal's values, then each knob one step up and one down."""
    first = space.first()
    chosen = [first]
    for knob in space.knobs:
        window = sorted({*knob.window, knob.value})
        at = window.index(knob.value)
        chosen += [{**first, knob.name: window[to]} for to in (at + 1, at - 1) if 0 <= to < len(window)]
    return [values for values in chosen if space.allows(values)]


def _holds(text: str, values: Mapping[str, int]) -> bool:
    expr = parse(text)
    return not expr.names <= values.keys() or bool(expr.value(dict(values)))
