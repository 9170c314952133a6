"""Counts what clients saw in each step of an upgrade, judges it, and writes the page. It measures nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.studies.failover.clients import SdkCall
from loadgen.studies.rendering import render_text
from tests.upgrade.releases import Release

SECOND_NS = 1_000_000_000
PAGE = Path(__file__).with_name("page.j2")
_TIMED_OUT = ("drain_timed_out", "takeover_drain_timed_out")


@dataclass(frozen=True)
class Step:
    """One step of the upgrade, from its beginning to that of the next."""

    what: str
    how: str
    began_ns: int


@dataclass(frozen=True)
class StepFigures:
    what: str
    how: str
    took_s: float
    requests: int
    failed: int
    broken: int
    """Failed requests whose answer had begun."""
    first_max_s: float
    pause_max_s: float
    rejected: int
    """Tries that a gateway rejected, and the SDK repeated unless it had done so twice."""
    refused: int
    """Connections that nothing accepted, after which a client tries the name's next address."""
    answered: Counter[str]
    """Requests by the version of the process that answered them."""
    forwarded: Counter[tuple[str, str]]
    """Requests that another gateway completed, by the versions of the process that was asked and of the other."""


@dataclass
class ProcessLogs:
    """Findings in the logs of all processes, each of which has its own."""

    versions: dict[tuple[str, str], str] = field(default_factory=dict)
    """Version of the process that completed a request, by its gateway and the request's id."""
    peers: dict[tuple[str, str], str] = field(default_factory=dict)
    """Gateway to which that process forwarded the request."""
    errors: Counter[str] = field(default_factory=Counter)
    """Log lines of level error or above, by event."""
    late_drains: Counter[str] = field(default_factory=Counter)
    """Drains that `limits.drain` cut off, by the version of the process."""

    def add(self, version: str, line: Mapping[str, Any]) -> None:
        """Add a line of a process of that version."""
        event = str(line.get("event"))
        if line.get("level") in ("error", "critical"):
            self.errors[event] += 1
        if event in _TIMED_OUT:
            self.late_drains[version] += 1
        if event == "request" and line["outcome"] == "completed":
            known_as = line["gateway"], line["request_id"]
            self.versions[known_as] = version
            for attempt in line["attempts"][-1:]:
                kind, target, _ = attempt.split(":", 2)
                if kind == "peer":
                    self.peers[known_as] = target


@dataclass
class Checks:
    """Findings besides the clients' calls."""

    processes: int = 0
    strangers: list[str] = field(default_factory=list)
    """Processes that did not run in the folder of the version that they were started as."""
    bad_exits: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    """State of one version that the other did not find."""
    usage: int = 0
    """Replaced gateways whose usage was found as it was."""
    orders: int = 0
    """Leaders that found an order that one of the other version took."""
    batches: int = 0
    """Batches that ended after their gateway was replaced."""
    lines: int = 0
    """Lines of all batches."""
    lines_failed: int = 0
    lines_lost: int = 0
    lines_doubled: int = 0
    audit_faults: list[str] = field(default_factory=list)
    audits: int = 0
    logs: ProcessLogs = field(default_factory=ProcessLogs)


@dataclass
class Played:
    """Findings of one upgrade and back."""

    steps: list[Step] = field(default_factory=list)
    ended_ns: int = 0
    calls: list[SdkCall] = field(default_factory=list)
    rejected_ns: list[int] = field(default_factory=list)
    """Times at which gateways rejected tries of calls."""
    refused_ns: list[int] = field(default_factory=list)
    """Times at which nothing accepted a connection of a client."""
    checks: Checks = field(default_factory=Checks)


def figures_of(played: Played) -> list[StepFigures]:
    """Figures of each step, with the calls that were sent in it."""
    steps, logs = played.steps, played.checks.logs
    found = []
    for number, step in enumerate(steps):
        until_ns = steps[number + 1].began_ns if number + 1 < len(steps) else played.ended_ns
        sent = [each for each in played.calls if step.began_ns <= each.left_ns < until_ns]
        failed = [each for each in sent if is_failed(each)]
        waits = [each.first_ns - each.left_ns for each in sent if each.first_ns is not None]
        whole = [(each.gateway, each.request_id) for each in sent if not is_failed(each)]
        found.append(
            StepFigures(
                step.what,
                step.how,
                (until_ns - step.began_ns) / SECOND_NS,
                len(sent),
                len(failed),
                sum(each.has_begun for each in failed),
                max(waits, default=0) / SECOND_NS,
                max((each.pause_ns for each in sent), default=0) / SECOND_NS,
                sum(step.began_ns <= at_ns < until_ns for at_ns in played.rejected_ns),
                sum(step.began_ns <= at_ns < until_ns for at_ns in played.refused_ns),
                Counter(logs.versions[each] for each in whole if each in logs.versions),
                Counter(
                    (logs.versions[asked], logs.versions[peer, asked[1]])
                    for asked in whole
                    if (peer := logs.peers.get(asked)) is not None and (peer, asked[1]) in logs.versions
                ),
            )
        )
    return found


def is_failed(call: SdkCall) -> bool:
    """True for a call that failed, or had no end."""
    return bool(call.fault) or call.ended_ns is None


def failures_of(calls: Iterable[SdkCall]) -> Counter[str]:
    return Counter(each.fault or "no end" for each in calls if is_failed(each))


def judged(steps: Sequence[StepFigures], checks: Checks, old: str, new: str) -> list[tuple[bool, str]]:
    """Aims, each with whether it is met. `old` and `new` are the versions."""
    requests, failed, broken, refused = (
        sum(getattr(each, name) for each in steps) for name in ("requests", "failed", "broken", "refused")
    )
    by_old, by_new = (sum(each.answered[version] for each in steps) for version in (old, new))
    there, back = (sum(each.forwarded[pair] for each in steps) for pair in ((old, new), (new, old)))
    late = checks.logs.late_drains
    bad_lines = checks.lines_failed + checks.lines_lost + checks.lines_doubled
    return [
        (requests > 0 and not failed, f"no request failed ({failed} of {requests:,} did)"),
        (not broken, f"no stream broke ({broken} did)"),
        (not refused, f"no client's connection was refused ({refused} were)"),
        (
            min(by_old, by_new, there, back) > 0,
            f"{old} answered requests ({by_old:,}) and forwarded some to {new} ({there}); {new} answered requests"
            f" ({by_new:,}) and forwarded some to {old} ({back})",
        ),
        (
            not bad_lines and checks.lines > 0,
            f"of {checks.lines:,} lines of batches none failed ({checks.lines_failed} did), was lost"
            f" ({checks.lines_lost}) or has two results ({checks.lines_doubled})",
        ),
        (not checks.bad_exits, f"each process that was replaced ended with 0{_named(checks.bad_exits)}"),
        (
            not late[new],
            f"`limits.drain` cut no drain of {new} off ({late[new]} were; of {old}, which is not judged, {late[old]})",
        ),
        (
            checks.processes > 0 and not checks.strangers,
            f"each of {checks.processes} processes ran in the folder of its version{_named(checks.strangers)}",
        ),
        (
            min(checks.usage, checks.orders, checks.batches) > 0 and not checks.forgotten,
            "the other version found what one had written: the usage of a tenant that asks no more, exactly"
            f" ({checks.usage} times), an order ({checks.orders}), a batch ({checks.batches})"
            f"{_named(checks.forgotten)}",
        ),
        (
            checks.audits > 0 and not checks.audit_faults,
            f"both versions find the audit logs whole ({checks.audits} chains){_named(checks.audit_faults)}",
        ),
    ]


def _named(faults: Sequence[str]) -> str:
    return f": {'; '.join(faults)}" if faults else ""


def page_of(
    steps: Sequence[StepFigures], checks: Checks, failures: Mapping[str, int], machine: Mapping[str, object],
    *, old: Release, new: Release, **told: object,
) -> str:  # fmt: skip
    return render_text(
        PAGE.read_text(),
        steps=steps,
        checks=checks,
        failures=failures,
        machine=machine,
        judged=judged(steps, checks, old.name, new.name),
        old=old,
        new=new,
        **told,
    )
