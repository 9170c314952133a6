"""Exchange of pools' histories on the gateways' streams, by the stored state. It decides nothing, and writes no
stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Never

from structlog.typing import FilteringBoundLogger

from controller.core.pool_histories import PoolHistories, PoolMesh
from controller.links import Link
from controller.views import View, ViewFeed
from gateway.core.vocabulary import Place
from mesh.clock import Clock
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import HistoriesWanted

_WINDOW_NS = 10_000_000_000
"""Time in which a stream may bring _HEARD_MAX histories; more are skipped. Gateways send one a minute for each
pool."""
_HEARD_MAX = 256
_LOOK_S = 60.0
"""Longest time after which a view is looked at again."""


class HistoryWatch:
    """Hooks for what becomes of histories; this class does nothing in them."""

    def history(self, result: str) -> None: ...


class HistoryExchange:
    """Histories of this controller's mesh."""

    def __init__(
        self, place: Place | None, board: ViewFeed, clock: Clock, log: FilteringBoundLogger, watch: HistoryWatch
    ) -> None:
        """`place` is the controller's; None: histories are not exchanged."""
        self.histories = PoolHistories(place)
        self.last_refusal = ""
        """Reason why the last history that was refused was."""
        self._board = board
        self._clock = clock
        self._log = log
        self._watch = watch

    def wanted(self) -> HistoriesWanted | None:
        """Return the message that asks gateways for histories; None where none are taken."""
        place = self.histories.place
        return None if place is None else HistoriesWanted(place)

    def came(self, link: Link, history: PoolHistory) -> None:
        """Take a history from the gateway of a stream."""
        view = self._board.newest
        if view is None or self._is_too_fast(link):
            self._watch.history("skipped")
            return
        if fault := self.histories.take(link.gateway_id, history, _mesh_of(view)):
            self.last_refusal = fault
            self._watch.history("refused")
            self._log.warning("pool_history_refused", gateway=link.gateway_id, reason=fault)
            return
        link.histories.add(((history.home, history.pool), history.recorded_by))
        self._watch.history("kept")

    async def follow_views(self) -> Never:
        """Drop what may not be here any more, whenever the stored state changes."""
        seen: View | None = None
        while True:
            seen = await self._board.other_than(seen, _LOOK_S)
            if seen is not None:
                self.histories.look_again(_mesh_of(seen))

    def due(self, link: Link, view: View) -> Iterator[PoolHistory]:
        """Yield the histories that the gateway of a stream needs for the pools that it serves by a view. A history
        that is taken from the iterator counts as sent."""
        if not len(self.histories):
            return
        mesh = _mesh_of(view)
        gateway_id = link.gateway_id
        link.histories = {each for each in link.histories if mesh.owners.get(each[0]) == gateway_id}
        for history in self.histories.due(gateway_id, link.histories, mesh):
            link.histories.add(((history.home, history.pool), history.recorded_by))
            self._watch.history("handed_over")
            self._log.info("pool_history_sent", gateway=gateway_id, home=history.home, pool=history.pool)
            yield history

    def _is_too_fast(self, link: Link) -> bool:
        now_ns = self._clock.now_ns()
        if now_ns >= link.histories_since_ns + _WINDOW_NS:
            link.histories_since_ns, link.histories_heard = now_ns, 0
        link.histories_heard += 1
        return link.histories_heard > _HEARD_MAX

    def describe(self) -> dict[str, object]:
        """State of the exchange, for operators."""
        view, held = self._board.newest, self.histories
        withheld = [] if view is None else held.withheld(_mesh_of(view))
        return {"kept": len(held), "withheld": withheld, "last_refusal": self.last_refusal}


def _mesh_of(view: View) -> PoolMesh:
    places = {gateway_id: each.place for gateway_id, each in view.registry.gateways.items()}
    return PoolMesh(view.pool_owners, places, view.policies)
