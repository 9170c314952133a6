"""Measures a tenant that floods a region, beside two that chat: with fair shares, without, with room left, and
alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadgen.figures import Figures
from loadgen.report import RequestReport
from loadgen.simulator.neighbours import MOVED_MAX_SHARE, MOVED_MAX_SHARE_WITH_ROOM, Neighbour, neighbours_of
from loadgen.studies.rendering import render
from loadgen.studies.sharing.worlds import LONG, SHORT, StudySize, client, play, world
from loadgen.vocabulary import RequestEnd

FLOODER: Final = "noisy"
YIELDS_ABOVE: Final = 1.5
WITH_ROOM: Final = {"sharing": {"yields_above": YIELDS_ABOVE}}
_FIRST_COME: Final = {"sharing": {"fair": False}}
_CHATS: Final = (("acme", 0.6), ("zeta", 0.6))
_FLOODS: Final = {LONG: "60 long", SHORT: "200 short (kept aside)"}


def measure(size: StudySize) -> Figures:
    seconds = size.seconds
    rows = [row for of in _FLOODS for seed in size.seeds for row in _rows(seed, seconds, of)]
    return {"seconds": seconds, "rows": rows}


def played(
    seed: int, seconds: int, floods_as: str | None, run: Mapping[str, Any] | None = None, of: str = LONG
) -> Sequence[RequestReport]:
    """Records of one run. `floods_as` is the class of the flood; None: there is none."""
    clients = [client(name, rate=rate) for name, rate in _CHATS]
    if floods_as is not None:
        clients.append(client(FLOODER, floods=3, of=of, service_class=floods_as))
    return play(world(clients, run, seconds=seconds, seed=seed)).records


class Floods:
    """Runs of one seed; those that do not depend on the sharing of queues are played once."""

    def __init__(self, seed: int, seconds: int, of: str = LONG) -> None:
        self._seed, self._seconds, self._of = seed, seconds, of
        self._quiet = played(seed, seconds, None)
        self._first_come = played(seed, seconds, "interactive", _FIRST_COME, of)

    def neighbours(self, floods_as: str = "interactive", run: Mapping[str, Any] | None = None) -> list[Neighbour]:
        return self.beside(self.played(floods_as, run))

    def played(self, floods_as: str = "interactive", run: Mapping[str, Any] | None = None) -> Sequence[RequestReport]:
        return played(self._seed, self._seconds, floods_as, run, self._of)

    def beside(self, records: Sequence[RequestReport]) -> list[Neighbour]:
        """Figures of the tenants that do not flood."""
        from_ns = self._seconds // 6 * 1_000_000_000
        return neighbours_of(FLOODER, quiet=self._quiet, fair=records, first_come=self._first_come, from_ns=from_ns)


def _rows(seed: int, seconds: int, of: str) -> list[dict[str, object]]:
    floods = Floods(seed, seconds, of)
    games = (floods.played(), floods.played(run=WITH_ROOM), floods.played("batch"))
    shared, with_room, as_batch = map(floods.beside, games)
    answered, answered_with_room, _ = map(_answered, games)
    return [
        {
            "flood": of,
            "seed": seed,
            "tenant": fair.tenant,
            "quiet_s": fair.quiet_s,
            "first_come_s": fair.first_come_s,
            "fair_s": fair.fair_s,
            "room_s": room.fair_s,
            "batch_s": batch.fair_s,
            "moved_share": fair.moved_share,
            "moved_share_with_room": room.moved_share,
            "lost": fair.lost + room.lost,
            "flood_kept_share": answered_with_room / answered,
        }
        for fair, room, batch in zip(shared, with_room, as_batch, strict=True)
    ]


def _answered(records: Sequence[RequestReport]) -> int:
    """Answered requests of the flood."""
    return sum(each.tenant == FLOODER and each.end is RequestEnd.COMPLETED for each in records)


def section(measured: Figures) -> str:
    def verdict(key: str, at_most: float) -> str:
        worst = max(row[key] for row in measured["rows"])
        return f"That {'holds' if worst <= at_most else 'does **not** hold'}: {worst:.0%} at most."

    return render(
        "sharing/noisy_neighbour.j2", measured=measured, floods=_FLOODS, verdict=verdict, yields_above=YIELDS_ABOVE,
        kept=[row["flood_kept_share"] for row in measured["rows"]], at_most=MOVED_MAX_SHARE,
        at_most_with_room=MOVED_MAX_SHARE_WITH_ROOM,
    )  # fmt: skip
