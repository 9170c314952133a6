"""Counts what became of a batch while processes were killed, judges it, and writes the page. It measures nothing
itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadgen.studies.rendering import render_text

SECOND_NS = 1_000_000_000
PAGE = Path(__file__).with_name("page.j2")
TAKE_OVER_S = 2
"""Time beyond the lease until a line ends at the gateway that takes a batch over, at most."""


@dataclass(frozen=True)
class Kill:
    """Kill, with the lines as they were right before."""

    what: str
    again: str
    """Condition on which it is started again, in words."""
    line: int
    """Lines that had ended."""
    in_flight: int
    """Lines in flight at the gateway that held the batch."""
    there: int | None
    """Lines in flight at what was killed; None where none is."""
    killed_ns: int
    up_ns: int
    """Time at which all that was killed was up again."""
    holders: tuple[str, str]
    """Gateways that held the batch right before, and once it had run on."""
    is_taken_over: bool
    """True if a gateway logged that it took the batch over."""


@dataclass(frozen=True)
class KillFigures:
    kill: Kill
    pause_max_s: float | None
    """Longest time without a further line, from the kill to the next one; None where no further line ended."""
    up_s: float


@dataclass
class AuditedTries:
    """Findings in the audit records of all gateways."""

    home: str
    """Region of the batch."""
    allowed: frozenset[str]
    """Regions in which its lines may run."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Tries of lines, by outcome."""
    attempts: Counter[str] = field(default_factory=Counter)
    """Engines and gateways that the gateway which held the batch sent tries to, by result."""
    ran_in: Counter[str] = field(default_factory=Counter)
    """Completed tries, by region."""
    strays: list[str] = field(default_factory=list)
    """Tries that met a region that the policy does not allow."""

    @property
    def tries(self) -> int:
        return self.outcomes.total()

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line of an audit record."""
        if line["kind"] == "violation":
            self.strays.append(f"{line['request']} at {line['gateway']}")
        if line["kind"] != "request" or line["origin"]["region"] != self.home:
            return
        attempts, processed = line.get("attempts", ()), line.get("processed")
        met = {line["region"], *(each["region"] for each in attempts), *([processed["region"]] if processed else [])}
        if not met <= self.allowed:
            self.strays.append(f"{line['request']} in {', '.join(sorted(met - self.allowed))}")
        if line.get("origin_gateway"):
            return
        self.outcomes[line["outcome"]] += 1
        self.attempts.update(each["result"] for each in attempts)
        if processed and line["outcome"] == "completed":
            self.ran_in[processed["region"]] += 1


@dataclass
class KilledBatch:
    """Findings of one batch."""

    lines: int
    audited: AuditedTries
    kills: list[Kill] = field(default_factory=list)
    began_ns: int = 0
    ended: list[tuple[int, int]] = field(default_factory=list)
    """Times at which further lines had ended, with their number so far."""
    status: str = ""
    failed: int = 0
    results: int = 0
    whole: int = 0
    """Results with an answer of full length."""
    lost: int = 0
    doubled: int = 0
    asked_outside: int = 0
    """Requests that were sent to the region outside the policy itself."""
    ran_outside: int = 0
    """Requests that the engines of that region completed, as they count them."""
    audits: int = 0
    audit_faults: list[str] = field(default_factory=list)


def is_whole(result: Mapping[str, Any], tokens: int) -> bool:
    """True if a line of the results has an answer of so many tokens, the most that it may have."""
    match result:
        case {"response": {"status_code": 200, "body": {"usage": usage, "choices": [{"finish_reason": "length"}]}}}:
            return bool(usage["completion_tokens"] == tokens)
        case _:
            return False


def figures_of(played: KilledBatch) -> list[KillFigures]:
    """Figures of each kill."""
    found = []
    for number, kill in enumerate(played.kills):
        until_ns = played.kills[number + 1].killed_ns if number + 1 < len(played.kills) else None
        ended = [
            at_ns for at_ns, _ in played.ended if kill.killed_ns < at_ns and (until_ns is None or at_ns < until_ns)
        ]
        gaps = [after - before for before, after in pairwise([kill.killed_ns, *ended])]
        found.append(
            KillFigures(kill, max(gaps) / SECOND_NS if gaps else None, (kill.up_ns - kill.killed_ns) / SECOND_NS)
        )
    return found


def took_s(played: KilledBatch) -> float:
    """Time from the hand-in to the last line."""
    return (played.ended[-1][0] - played.began_ns) / SECOND_NS if played.ended else 0.0


def pause_max_s(played: KilledBatch) -> float:
    """Longest time without a further line, from the first line to the last."""
    return max((after - before for (before, _), (after, _) in pairwise(played.ended)), default=0) / SECOND_NS


def judged(played: KilledBatch, kills: int, further: str, lease_s: float) -> list[tuple[bool, str]]:
    """Aims, each with whether it is met. `kills`: how many there should be; `further`: region that lines overflow
    to."""
    audited, lines, figures = played.audited, played.lines, figures_of(played)
    amid = [
        each for each in figures
        if each.kill.line and each.kill.in_flight and each.kill.there != 0 and each.pause_max_s is not None
    ]  # fmt: skip
    taken = [each for each in figures if each.kill.is_taken_over]
    pauses = [each.pause_max_s for each in taken if each.pause_max_s is not None]
    return [
        (played.status == "completed", f"the batch has completed ({played.status or 'it has not ended'})"),
        (
            played.results == lines and not played.lost + played.doubled,
            f"each of {lines:,} lines has one result ({played.results:,} results; {played.lost} lines have none,"
            f" {played.doubled} have several)",
        ),
        (played.whole == lines, f"each result is an answer of full length ({played.whole:,} are)"),
        (not played.failed, f"no line failed ({played.failed} did)"),
        (
            len(amid) == len(played.kills) == kills,
            f"each kill met lines in flight, and the batch ran on after it ({len(amid)} of {kills})",
        ),
        (
            0 < len(taken) == len(pauses)
            and max(pauses) <= lease_s + TAKE_OVER_S
            and all(before != after for before, after in (each.kill.holders for each in taken)),
            f"another gateway took the batch of a dead one over, within {lease_s + TAKE_OVER_S:g} s without a further"
            f" line (logged `batch_taken_over` after kills: {len(taken)}; longest: {max(pauses, default=0):.1f} s)",
        ),
        (
            audited.ran_in[further] > 0 and not audited.strays,
            f"lines were sent only to regions that the policy of {audited.home} allows: {len(audited.strays)} audit"
            f" lines name another one; {audited.ran_in[further]} of {audited.tries:,} tries ran in {further}"
            f"{''.join(f'; {each}' for each in audited.strays[:3])}",
        ),
        (
            played.ran_outside == played.asked_outside > 0,
            f"engines outside the policy completed no line ({played.ran_outside} requests in all, of which"
            f" {played.asked_outside} were sent to their own gateway)",
        ),
        (
            played.audits > 0 and not played.audit_faults,
            f"the audit logs are whole ({played.audits} chains){''.join(f'; {each}' for each in played.audit_faults)}",
        ),
    ]


def page_of(
    played: KilledBatch, aims: Sequence[tuple[bool, str]], machine: Mapping[str, object], **told: object
) -> str:  # fmt: skip
    return render_text(
        PAGE.read_text(),
        played=played,
        figures=figures_of(played),
        took_s=took_s(played),
        pause_max_s=pause_max_s(played),
        judged=aims,
        machine=machine,
        **told,
    )
