"""A host that falls silent, as the controller learns of it: its stream and its probes end in silence, and the peers
report theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from controller.config import GatewayProbeConfig
from controller.core.vocabulary import Condition
from mesh.silence import BEAT_NS, SilenceDetector
from tests.support.controller import MS, SECOND, Told, mesh
from tests.support.silence import WatchedLink

PROBES = GatewayProbeConfig()
ONE_WAY_NS = 75 * MS
"""Delay from each of controller and gateways to each other one."""
REPORTS_APART_NS = SECOND
DEATH_NS = 60 * SECOND
Moment = tuple[int, Callable[[], object]]


def last_arrivals_and_alarm(phase_ns: int) -> tuple[int, int]:
    """Time of the last sign of life at the other end of a link, and of the alarm. `phase_ns`: its age at the death."""
    link = WatchedLink(SilenceDetector(10 * SECOND))
    link.hear(DEATH_NS - phase_ns - number * BEAT_NS + ONE_WAY_NS for number in reversed(range(40)))
    return link.now_ns, link.wait_until(DEATH_NS + 10 * SECOND)[0]


def what_the_controller_learns(told: Told, phase_ns: int) -> Iterator[Moment]:
    heard_ns, alarm_ns = last_arrivals_and_alarm(phase_ns)
    yield alarm_ns, partial(told.disconnect, "eu")
    for peer in ("us", "ap"):
        for at_ns in range(DEATH_NS + phase_ns, alarm_ns, REPORTS_APART_NS):
            last_ns = min(heard_ns, at_ns)
            yield (
                at_ns + ONE_WAY_NS,
                lambda peer=peer, last_ns=last_ns: told.heard(  # type: ignore[misc]
                    peer, "eu", ago_ns=told.now_ns - last_ns
                ),
            )
        yield alarm_ns + ONE_WAY_NS, partial(told.heard, peer, "eu", ago_ns=alarm_ns - heard_ns, is_broken=True)
    for sent_ns in range(DEATH_NS - ONE_WAY_NS + phase_ns, DEATH_NS + 3 * SECOND, PROBES.interval_ns):
        yield sent_ns + PROBES.timeout_ns, partial(told.probe, "eu", apart_ns=0)


@pytest.mark.parametrize("phase_ms", range(0, 250, 50))
def test_a_silent_host_is_down_within_two_seconds(phase_ms: int) -> None:
    told = mesh()
    told.heard("us", "eu")
    for at_ns, happen in sorted(what_the_controller_learns(told, phase_ms * MS), key=lambda moment: moment[0]):
        told.wait(at_ns - told.now_ns)
        happen()
        if told.condition("eu") is Condition.DOWN:
            break
    assert told.condition("eu") is Condition.DOWN
    assert told.now_ns - DEATH_NS <= 2 * SECOND
