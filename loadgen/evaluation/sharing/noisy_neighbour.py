"""A tenant that floods a region, beside two that chat: with fair shares, without, and without the flood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from loadgen.evaluation.sharing.worlds import client, play, world
from loadgen.pages.markdown import table
from loadgen.report import RequestRecord
from loadgen.simulator.neighbours import MOVED_MAX_SHARE, Neighbour, neighbours_of

FLOODER: Final = "noisy"
_FIRST_COME: Final = {"sharing": {"fair": False}}
_SECONDS, _QUICK_SECONDS = 240, 60
_CHATS: Final = (("acme", 0.6), ("zeta", 0.6))


def measure(options: object) -> dict[str, object]:
    is_quick = bool(getattr(options, "quick", False))
    seeds = 1 if is_quick else int(getattr(options, "seeds", 1))
    seconds = _QUICK_SECONDS if is_quick else _SECONDS
    rows = [row for seed in range(1, seeds + 1) for row in _rows(seed, seconds)]
    return {"seconds": seconds, "rows": rows}


def played(
    seed: int, seconds: int, floods_as: str | None, run: dict[str, Any] | None = None
) -> Sequence[RequestRecord]:
    """`floods_as`: the class of the flood; None: there is none."""
    clients = [client(name, rate=rate) for name, rate in _CHATS]
    if floods_as is not None:
        clients.append(client(FLOODER, floods=3, service_class=floods_as))
    return play(world(clients, run, seconds=seconds, seed=seed)).records


def neighbours(seed: int, seconds: int, floods_as: str = "interactive") -> list[Neighbour]:
    return neighbours_of(
        FLOODER,
        quiet=played(seed, seconds, None),
        fair=played(seed, seconds, floods_as),
        first_come=played(seed, seconds, "interactive", _FIRST_COME),
        from_ns=seconds // 6 * 1_000_000_000,
    )


def _rows(seed: int, seconds: int) -> list[dict[str, object]]:
    as_one, as_batch = neighbours(seed, seconds), neighbours(seed, seconds, "batch")
    return [
        {
            "seed": seed,
            "tenant": each.tenant,
            "quiet_s": each.quiet_s,
            "fair_s": each.fair_s,
            "batch_s": batch.fair_s,
            "first_come_s": each.first_come_s,
            "moved_share": each.moved_share,
            "lost": each.lost,
        }
        for each, batch in zip(as_one, as_batch, strict=True)
    ]


def section(measured: dict[str, object]) -> str:
    rows: Any = measured["rows"]
    head = ("seed", "tenant", "alone", "first come", "fair shares", "flood is `batch`", "what is left of the flood")
    lines = [
        (
            str(row["seed"]),
            str(row["tenant"]),
            *(f"{row[key]:.2f} s" for key in ("quiet_s", "first_come_s", "fair_s", "batch_s")),
            f"{row['moved_share']:.0%}",
        )
        for row in rows
    ]
    worst = max(row["moved_share"] for row in rows)
    verdict = "holds" if worst <= MOVED_MAX_SHARE else "does **not** hold"
    lost = sum(row["lost"] for row in rows)
    return f"""## A noisy neighbour

Two tenants chat while a third asks for three bursts of 60 long prompts at once, again and again, for
{measured["seconds"]} s: several times what the two engines can take. The 99th percentile of the two's first tokens.

{table(head, lines)}
Stated: of what a flood does to others' first tokens where whoever comes first is served first, no more than
{MOVED_MAX_SHARE:.0%} is left. That {verdict}: {worst:.0%} at most, and {lost} of their requests were lost. What is left
is that nothing is preempted: while nobody else waits a burst fills the engines, and then all its prompts are read, and
one of its answers has to end, before anybody's turn is worth anything. Where the flood is of class `batch`, a share of
each engine stays free of it.
"""
