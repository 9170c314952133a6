"""History of ended requests that predictors are fitted to; bounded, without text or names.

The history only stores; fitting happens elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from gateway.core.features.disaggregated.predictors.arrays import LENGTHS_MAX
from gateway.core.features.disaggregated.predictors.recent import RecentLengths, RecentRequests
from gateway.core.value import value


@value
class Ended:
    """A request that has left its decode worker."""

    prompt_key: int
    """Hash of its prompt, or UNKNOWN_PROMPT."""
    prompt_tokens: int
    output_tokens: int
    after: int
    """Number of requests ever added to the history when it was admitted, i.e. those that could be known then."""
    ended_ns: int
    """Time of its end, on the clock of the history's owner."""


class History:
    """Last `ended_max` requests; older ones are dropped."""

    def __init__(self, ended_max: int, ended: Iterable[Ended] = (), added: int = 0) -> None:
        assert 0 < ended_max <= LENGTHS_MAX, "a history is bounded"
        self._ended: deque[Ended] = deque(ended, maxlen=ended_max)
        self.added = max(added, len(self._ended))
        """Number of requests ever added, including dropped ones."""

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, ended: Ended) -> None:
        self._ended.append(ended)
        self.added += 1

    def snapshot(self) -> Snapshot:
        """Immutable copy, in order of ending; it can be read elsewhere while requests are added."""
        return Snapshot(tuple(self._ended), self.added)


@value
class Snapshot:
    """A history at one moment."""

    ended: tuple[Ended, ...]
    added: int

    @property
    def first(self) -> int:
        """Number of requests that ended before the first of them."""
        return self.added - len(self.ended)


def recent_at_admission(ended: Sequence[Ended], first: int) -> Iterator[RecentLengths]:
    """Yield, for each request, the recent lengths known at its admission, computed from earlier requests of `ended`
    only. `first`: number of requests that had ended before these."""
    recent = RecentRequests()
    known = [recent.lengths()]
    for number, each in enumerate(ended):
        yield known[min(max(0, each.after - first), number)]
        recent.left(each.prompt_tokens, each.output_tokens)
        known.append(recent.lengths())
