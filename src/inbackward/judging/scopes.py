"""Where and when a mistake is made: in which parameters, in which iterations, on which ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from inbackward.training import Act, Intervention, Iteration


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Everywhere and always, unless said otherwise.

    Attributes:
        names: of parameters; ``None`` for all.
        first, last: iterations; ``last`` is ``None`` for no end.
        every: of those, every so many.
        ranks: ``None`` for all.
    """

    names: frozenset[str] | None = None
    first: int = 0
    last: int | None = None
    every: int = 1
    ranks: frozenset[int] | None = None

    def has(self, iteration: int) -> bool:
        """Whether an iteration lies in it."""
        late_enough = iteration >= self.first and (iteration - self.first) % self.every == 0
        return late_enough and (self.last is None or iteration <= self.last)

    @property
    def restrictions(self) -> int:
        """How much of the run it leaves out: a mistake everywhere is the simpler story."""
        timed = 2 if self.every > 1 or self.last is not None else bool(self.first)
        return timed + (self.names is not None) + (self.ranks is not None)

    def when(self) -> str:
        """The iterations, in words; ``""`` for all."""
        if self.last is not None:
            return f"in iteration {self.first} only"
        if self.every > 1:
            return f"in every {_ordinal(self.every)} iteration"
        return f"from iteration {self.first} on" if self.first else ""


def scopes(
    names: frozenset[str] | None, first: int, ranks: frozenset[int] | None, iterations: int, timed: bool
) -> Iterator[Scope]:
    """Those in which a mistake may explain a divergence that begins in some parameters, in some iteration.

    Args:
        names: ``None`` where it is all of them.
        iterations: of the run.
        timed: iterations may be left out; a mistake at an event has its own.
    """
    narrow = Scope(names=names, ranks=ranks)
    for some in dict.fromkeys((None, names)):
        for where in dict.fromkeys((None, ranks)):
            yield Scope(names=some, ranks=where)
    if timed and first:
        yield replace(narrow, first=first)
    if timed and 0 < first < iterations - first - 1:  # it would come again
        yield replace(narrow, first=first, every=first + 1)
    if timed and iterations > 1:
        yield replace(narrow, first=first, last=first)


class Only(Intervention):
    """An intervention within a scope."""

    def __init__(self, scope: Scope, inner: Intervention, rank: int = 0) -> None:
        self._scope, self._inner = scope, inner
        self._here = scope.ranks is None or rank in scope.ranks
        self.reduces = inner.reduces

    def built(self, now: Iteration) -> None:
        self._inner.built(now)

    def begin(self, now: Iteration) -> None:
        if self._acts(now):
            self._inner.begin(self._within(now))

    def backward(self, now: Iteration, act: Act) -> None:
        self._inner.backward(self._within(now), act) if self._acts(now) else act()

    def after_backward(self, now: Iteration) -> None:
        if self._acts(now):
            self._inner.after_backward(self._within(now))

    def clip(self, now: Iteration, act: Act) -> None:
        self._inner.clip(self._within(now), act) if self._acts(now) else act()

    def step(self, now: Iteration, act: Act) -> None:
        self._inner.step(self._within(now), act) if self._acts(now) else act()

    def foreign_backward(self, now: Iteration, act: Act) -> None:
        self._inner.foreign_backward(self._within(now), act) if self._acts(now) else act()

    def _acts(self, now: Iteration) -> bool:
        return self._here and self._scope.has(now.iteration)

    def _within(self, now: Iteration) -> Iteration:
        names = self._scope.names
        return (
            now if names is None else replace(now, parameters={n: p for n, p in now.parameters.items() if n in names})
        )


def _ordinal(number: int) -> str:
    return {2: "other", 3: "third"}.get(number, f"{number}th")
