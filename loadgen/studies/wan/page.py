"""Page of faults between hosts: what clients saw, when peers noticed, when the mesh was whole again, and the judgement
of the recorded histories. Every figure is measured elsewhere; it must never leave out a failure or a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from loadgen.demo.scenario import ROUND_TRIPS_FILE
from loadgen.hosts.wire_process import LATE_MS
from loadgen.pages.markdown import NOTHING, between
from loadgen.report import quantile
from loadgen.round_trips import read_round_trips
from loadgen.studies.rendering import render, shortened
from loadgen.studies.wan.excuses import NO_NAME, UNDER_WAY
from loadgen.studies.wan.faults import JITTER_MS, REGIONS, STANDBY, NamesFault, WanFault, round_trips_ms
from loadgen.studies.wan.hosts import DRAIN_S
from loadgen.studies.wan.outcomes import (
    BOTH_LED_S,
    NAME_ATTEMPTS,
    NAME_TIMEOUT_S,
    OVERLAP_S,
    PROMPT_BYTES,
    RECONNECT_S,
    SLOTS,
    TIMEOUT_S,
    UNWRITTEN_S,
    USERS,
    WARM_S,
    FaultOutcome,
    PhaseSeen,
    PlayedFaults,
)


def page_of(faults: Sequence[WanFault], whole: PlayedFaults, machine: Mapping[str, object]) -> str:
    outcomes = whole.outcomes
    played = {fault.name: [each for each in outcomes if each.fault == fault.name] for fault in faults}
    return render(
        "wan/page.j2", machine=machine, faults=faults, played=played, rounds=max(map(len, played.values())),
        measured=[each for each in faults if played[each.name]],
        round_trips_ms=round_trips_ms(read_round_trips(ROUND_TRIPS_FILE)), jitter_ms=JITTER_MS, warm_s=WARM_S,
        regions=REGIONS, standby=STANDBY, drain_s=DRAIN_S, users=USERS, slots=SLOTS, timeout_s=TIMEOUT_S,
        name_attempts=NAME_ATTEMPTS, name_timeout_s=NAME_TIMEOUT_S, prompt_bytes=PROMPT_BYTES,
        overlap_s=OVERLAP_S, unwritten_s=UNWRITTEN_S, reconnect_s=RECONNECT_S,
        ttft=_ttft, failed=_failed, noticed=_noticed, down=_down, whole=_whole, words=_words(outcomes),
        violations=[f"{each.fault}: {violation}" for each in outcomes for violation in each.violations],
        judged=[line for fault in faults for line in _judged(fault, played[fault.name])],
        unplayed=[f"**not met**: {each}" for each in whole.unplayed], outcomes=outcomes, total=_total, others=_others,
        since=_since, late=_total(outcomes, "late"), late_ms=LATE_MS,
        late_max_ms=max((each.late_max_ms for each in outcomes), default=0.0),
    )  # fmt: skip


def _total(outcomes: Sequence[FaultOutcome], figure: str) -> int:
    return sum(getattr(each, figure) for each in outcomes)


def _ttft(phases: Sequence[PhaseSeen]) -> str:
    """Median and p99 of all rounds' answers."""
    waits = sorted(wait for each in phases for wait in each.ttft_s)
    return f"{quantile(waits, 0.5):.2f} / {quantile(waits, 0.99):.2f}" if waits else NOTHING


def _failed(phases: Sequence[PhaseSeen]) -> str:
    """Requests, and those of them that failed or had no end."""
    unfinished = sum(each.unfinished for each in phases)
    failed = sum(len(each.failures) for each in phases)
    more = f" + {unfinished} without an end" if unfinished else ""
    return f"{sum(each.requests for each in phases):,} / {failed:,}{more}"


def _noticed(fault: WanFault, outcomes: Sequence[FaultOutcome]) -> str:
    """Seconds after which the first and the last of the peers that were to be lost were."""
    if not fault.loses or not outcomes:
        return NOTHING
    times = [each.losses.get(f"{observer} of {peer}") for each in outcomes for observer, peer in fault.loses]
    return _range(times)


def _down(outcomes: Sequence[FaultOutcome]) -> str:
    times = [at_s for each in outcomes for at_s in each.down_s.values()]
    return _range(times) if times else NOTHING


def _since(outcomes: Sequence[FaultOutcome], figure: str) -> str:
    """Seconds until something happened, of the rounds in which it did."""
    times = [getattr(each, figure) for each in outcomes if getattr(each, figure) is not None]
    return _range(times) if times else NOTHING


def _whole(outcomes: Sequence[FaultOutcome]) -> str:
    return _range([each.whole_s for each in outcomes])


def _range(times: Sequence[float | None]) -> str:
    known = [each for each in times if each is not None]
    never = len(times) - len(known)
    text = between(known) if known else ""
    return ", ".join(filter(None, [text, f"{never} never" if never else ""])) or NOTHING


def _others(fault: WanFault, outcomes: Sequence[FaultOutcome]) -> int:
    """Losses of peers that were not to be lost, at any observer."""
    wanted = {f"{observer} of {peer}" for observer, peer in fault.loses}
    return sum(name not in wanted for each in outcomes for name in each.losses)


def _words(outcomes: Sequence[FaultOutcome]) -> list[str]:
    """Failures in the client's own words, so that readers can judge them."""
    said = Counter(
        (each.fault, phase, shortened(text))
        for each in outcomes
        for phase, seen in each.phases.items()
        for text in seen.failures
    )
    return [f"{count} × {fault}, sent {phase} it: `{text}`" for (fault, phase, text), count in said.most_common(24)]


def _judged(fault: WanFault, outcomes: Sequence[FaultOutcome]) -> Iterator[str]:
    if not outcomes:
        return
    late = [
        f"{observer} of {peer} {'never' if at_s is None else f'after {at_s:.1f} s'}"
        for each in outcomes
        for (observer, peer), within_s in fault.loses.items()
        if (at_s := each.losses.get(f"{observer} of {peer}")) is None or at_s > within_s
    ]
    if fault.loses:
        yield f"{_word(not late)}: {fault.name}: peers are lost in time{_because(late)}"
    others = _others(fault, outcomes)
    if not fault.may_lose:
        yield f"{_word(not others)}: {fault.name}: no other peer is lost while it lasts ({others} were)"
    failed = sum(len(seen.failures) + seen.unfinished for each in outcomes for seen in each.phases.values())
    excused = sum(each.excused for each in outcomes)
    because = f"; {excused} more could not be answered: {_excuse(fault)}" if excused else ""
    yield f"{_word(failed == excused)}: {fault.name}: no request fails ({failed - excused} did{because})"
    restarts = sum(each.restarts for each in outcomes) - len(outcomes) * fault.kills
    yield f"{_word(not restarts)}: {fault.name}: no other process ends by itself ({restarts} did)"
    both_s = max(each.both_led_s for each in outcomes)
    if both_s:
        say = f"two controllers say that they lead for at most {BOTH_LED_S:g} s ({both_s:.1f} s)"
        yield f"{_word(both_s <= BOTH_LED_S)}: {fault.name}: {say}"
    if fault.keeps_owners:
        moved = sum(each.reassigned for each in outcomes)
        yield f"{_word(not moved)}: {fault.name}: no replica changes its gateway (seen {moved} times)"
    if fault.names is NamesFault.LYING:
        refused = sum(each.certificates_refused for each in outcomes)
        yield f"{_word(refused > 0)}: {fault.name}: wrong gateways are refused by their certificates ({refused} times)"
    if fault.leads_elsewhere:
        has_led = [each.led_s is not None and each.led_s <= fault.seconds for each in outcomes]
        yield f"{_word(all(has_led))}: {fault.name}: another controller leads while it lasts"
    if fault.frozen in REGIONS:
        own = [len(each.phases["during"].ttft_s) - len(each.cut_off.ttft_s) for each in outcomes]
        yield f"{_word(all(own))}: {fault.name}: other regions answer their own clients ({sum(own)} calls)"
    if fault.leads_away:
        led = [each.led_away for each in outcomes]
        yield f"{_word(all(led))}: {fault.name}: other regions answer clients of {fault.struck} ({sum(led)} calls)"
    unhealed = sum(each.whole_s is None for each in outcomes)
    yield f"{_word(not unhealed)}: {fault.name}: the mesh is whole again"
    found = sum(len(each.violations) for each in outcomes)
    yield f"{_word(not found)}: {fault.name}: no violation in its history ({found} found)"


def _excuse(fault: WanFault) -> str:
    return UNDER_WAY if fault.cuts_answers else NO_NAME


def _because(late: Sequence[str]) -> str:
    return f" ({'; '.join(late)})" if late else ""


def _word(is_met: bool) -> str:
    return "**met**" if is_met else "**not met**"
