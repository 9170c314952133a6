"""Counts what clients saw in each step of an upgrade, judges it, and writes the page. It measures nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.studies.failover.clients import SdkCall
from loadgen.studies.rendering import render_text

SECOND_NS = 1_000_000_000
PAGE = Path(__file__).with_name("page.j2")


@dataclass(frozen=True)
class Step:
    """One step of the upgrade, from its beginning to that of the next."""

    what: str
    how: str
    began_ns: int
    switched: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Gateways that a new process served from then on: the time, and its version."""


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
    forwarded: int
    answered: dict[str, int]
    """Requests by the version of the gateway that answered them."""


@dataclass
class Checks:
    """Findings besides the clients' calls."""

    processes: int = 0
    strangers: list[str] = field(default_factory=list)
    """Processes that did not run the version that they were started as."""
    bad_exits: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    """State of one version that the other did not find."""
    remembered: int = 0
    """State of one version that the other found."""
    lines: int = 0
    """Lines of all batches."""
    lines_failed: int = 0
    lines_lost: int = 0
    lines_doubled: int = 0
    audit_faults: list[str] = field(default_factory=list)
    audits: int = 0
    logged: Counter[str] = field(default_factory=Counter)
    """Log lines of level error or above, by event."""


def figures_of(
    steps: Sequence[Step], ended_ns: int, calls: Iterable[SdkCall], rejected_ns: Sequence[int], first: str
) -> list[StepFigures]:
    """Figures of each step, with the calls that were sent in it. `rejected_ns` are the times at which gateways rejected
    tries; `first` is the version of all gateways before."""
    called = list(calls)
    found = []
    for number, step in enumerate(steps):
        until_ns = steps[number + 1].began_ns if number + 1 < len(steps) else ended_ns
        sent = [each for each in called if step.began_ns <= each.left_ns < until_ns]
        failed = [each for each in sent if is_failed(each)]
        waits = [each.first_ns - each.left_ns for each in sent if each.first_ns is not None]
        whole = [each for each in sent if not is_failed(each)]
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
                sum(step.began_ns <= at_ns < until_ns for at_ns in rejected_ns),
                sum(not each.gateway.startswith(f"gw-{each.ran_in}") for each in whole),
                dict(Counter(version_at(steps, each.gateway, each.left_ns, first) for each in whole)),
            )
        )
    return found


def is_failed(call: SdkCall) -> bool:
    """True for a call that failed, or had no end."""
    return bool(call.fault) or call.ended_ns is None


def version_at(steps: Iterable[Step], gateway: str, at_ns: int, first: str) -> str:
    """Version that served a gateway's clients at that time."""
    version = first
    for step in steps:
        since_ns, switched = step.switched.get(gateway, (at_ns + 1, ""))
        version = switched if since_ns <= at_ns else version
    return version


def failures_of(calls: Iterable[SdkCall]) -> Counter[str]:
    return Counter(each.fault or "no end" for each in calls if is_failed(each))


def judged(steps: Sequence[StepFigures], checks: Checks) -> list[tuple[bool, str]]:
    """Aims, each with whether it is met."""
    requests, failed, broken = (sum(getattr(each, name) for each in steps) for name in ("requests", "failed", "broken"))
    bad_lines = checks.lines_failed + checks.lines_lost + checks.lines_doubled
    return [
        (requests > 0 and not failed, f"no request failed ({failed} of {requests:,} did)"),
        (not broken, f"no stream broke ({broken} did)"),
        (
            not bad_lines and checks.lines > 0,
            f"of {checks.lines:,} lines of batches none failed ({checks.lines_failed} did), was lost"
            f" ({checks.lines_lost}) or done twice ({checks.lines_doubled})",
        ),
        (not checks.bad_exits, f"each process that was replaced ended with 0{_named(checks.bad_exits)}"),
        (
            checks.processes > 0 and not checks.strangers,
            f"each of {checks.processes} processes ran the version that it should{_named(checks.strangers)}",
        ),
        (
            checks.remembered > 0 and not checks.forgotten,
            f"orders, usage and batches of one version were found by the other ({checks.remembered} times)"
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
    **told: object,
) -> str:  # fmt: skip
    return render_text(
        PAGE.read_text(),
        steps=steps,
        checks=checks,
        failures=failures,
        machine=machine,
        judged=judged(steps, checks),
        **told,
    )
