"""What predictors are fitted to: the last requests that came to an end, a bounded number of them. No text, no names.

It only keeps; who fits, and when, is not its affair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from gateway.core.decode.predictors.arrays import LENGTHS_MAX
from gateway.core.decode.predictors.recent import RecentLengths, RecentRequests
from gateway.core.value import value


@value
class Ended:
    """A request that has left its decode worker."""

    prompt_key: int
    """A hash of its prompt, or UNKNOWN_PROMPT."""
    prompt_tokens: int
    output_tokens: int
    after: int
    """How many had ended, of all that were ever added, when it was admitted: what could be known then."""
    ended_ns: int
    """On the clock of whoever keeps the history."""


class History:
    """The oldest go first, once there are too many."""

    def __init__(self, ended_max: int, ended: Iterable[Ended] = (), added: int = 0) -> None:
        assert 0 < ended_max <= LENGTHS_MAX, "a history is bounded"
        self._ended: deque[Ended] = deque(ended, maxlen=ended_max)
        self.added = max(added, len(self._ended))
        """Ever, those among them that are not kept any more."""

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, ended: Ended) -> None:
        self._ended.append(ended)
        self.added += 1

    def snapshot(self) -> Snapshot:
        """As of now, in the order in which they ended: somebody else may read it while more are added."""
        return Snapshot(tuple(self._ended), self.added)


@value
class Snapshot:
    """A history as it was at some moment."""

    ended: tuple[Ended, ...]
    added: int

    @property
    def first(self) -> int:
        """How many had ended before the first of them."""
        return self.added - len(self.ended)


def recent_at_admission(ended: Sequence[Ended], first: int) -> Iterator[RecentLengths]:
    """For each, what was known of recent requests when it was admitted, as far as these tell. `first`: how many had
    ended before them. Nothing of what came later is in it."""
    recent = RecentRequests()
    known = [recent.lengths()]
    for number, each in enumerate(ended):
        yield known[min(max(0, each.after - first), number)]
        recent.left(each.prompt_tokens, each.output_tokens)
        known.append(recent.lengths())
