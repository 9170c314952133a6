"""False alarms of the silence detector on bad links, and how soon it notices a death.

A month has some ten million signs of life on each link. Only those that are lost several times in a row arrive late
enough to matter, so that only these are played, each with the history that the detector remembers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from loadgen.simulator.network import RETRANSMITS_MAX, retransmission_ns
from mesh import silence
from mesh.silence import BEAT_NS, BLOCK_NS, BLOCKS, TIMEOUT_MIN_NS, SilenceDetector
from tests.support.core import MS, SECOND
from tests.support.silence import WatchedLink

MONTH_NS = 30 * 86_400 * SECOND
MONTHS = 3
LOSS = 0.01
JITTER_NS = 300 * MS
ROUND_TRIPS_NS = [rtt * MS for rtt in range(10, 210, 10)]
"""Round trips of twenty links."""
CEILING_NS = 10 * SECOND
REMEMBERED_NS = (BLOCKS + 2) * BLOCK_NS
"""Time that the detector remembers, and more."""
OFTEN_NS = 100 * MS
"""Interval of the reports of a busy peer."""


def delay_ns(rtt_ns: int, losses: int, rng: random.Random) -> int:
    return rtt_ns // 2 + int(JITTER_NS * rng.random()) + retransmission_ns(losses, rtt_ns)


def losses_in_a_row(rng: random.Random, at_least: int = 0) -> int:
    losses = at_least
    while losses < RETRANSMITS_MAX and rng.random() < LOSS:
        losses += 1
    return losses


def sent_of(*, is_busy: bool) -> list[tuple[int, bool]]:
    """Times at which a peer gives its signs of life, with True for beats. A busy one sends reports beside them."""
    beats = [(at_ns, True) for at_ns in range(0, REMEMBERED_NS, BEAT_NS)]
    reports = [(at_ns, False) for at_ns in range(0, REMEMBERED_NS, OFTEN_NS)] if is_busy else []
    return sorted([*beats, *reports])


def arrivals(
    rtt_ns: int, rng: random.Random, sent: Sequence[tuple[int, bool]], last_losses: int
) -> Iterator[tuple[int, bool]]:
    """Times at which signs of life arrive, in the order in which they were sent, as TCP hands them on; the last one is
    lost so many times."""
    latest_ns = 0
    for number, (at_ns, is_beat) in enumerate(sent, 1):
        losses = last_losses if number == len(sent) else losses_in_a_row(rng)
        latest_ns = max(latest_ns, at_ns + delay_ns(rtt_ns, losses, rng))
        yield latest_ns, is_beat


def dangerous_losses(rtt_ns: int) -> int:
    """Losses in a row below which no sign of life can come later than the shortest time-out."""
    return next(n for n in range(1, 9) if BEAT_NS + JITTER_NS + retransmission_ns(n, rtt_ns) >= TIMEOUT_MIN_NS)


def false_alarms(rtt_ns: int, duration_ns: int, rng: random.Random, *, is_busy: bool) -> int:
    """False alarms on one link, each late sign of life counted once."""
    least, sent = dangerous_losses(rtt_ns), sent_of(is_busy=is_busy)
    per_ns = LOSS**least * len(sent) / REMEMBERED_NS
    alarms, now_ns = 0, rng.expovariate(per_ns)
    while now_ns < duration_ns:
        link = WatchedLink(SilenceDetector(CEILING_NS))
        last = rng.randrange(len(sent) - 4, len(sent)) + 1
        alarms += bool(link.hear_each(arrivals(rtt_ns, rng, sent[:last], losses_in_a_row(rng, least))))
        now_ns += rng.expovariate(per_ns)
    return alarms


def in_the_mesh(seed: int, *, is_busy: bool = False) -> int:
    rng = random.Random(seed)
    return sum(false_alarms(rtt_ns, MONTHS * MONTH_NS, rng, is_busy=is_busy) for rtt_ns in ROUND_TRIPS_NS)


@pytest.mark.parametrize(
    "is_busy", [pytest.param(False, id="idle peers"), pytest.param(True, id="busy peers", marks=pytest.mark.nightly)]
)
def test_twenty_bad_links_give_less_than_one_false_alarm_a_month(is_busy: bool) -> None:
    assert in_the_mesh(seed=1, is_busy=is_busy) < MONTHS


@pytest.mark.nightly
def test_a_time_out_that_does_not_adapt_would_give_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "LATENESS_FACTOR", 0)
    assert in_the_mesh(seed=1) > 30 * MONTHS


def noticed_after_ns(rtt_ns: int, *, phase_ns: int) -> int:
    """Time from a death to the alarm on a link without loss and jitter. `phase_ns`: age of the last sign of life."""
    link = WatchedLink(SilenceDetector(CEILING_NS))
    sent_ns = [number * BEAT_NS for number in range(100)]
    link.hear(each + rtt_ns // 2 for each in sent_ns)
    return link.wait_until(100 * SECOND)[0] - (sent_ns[-1] + phase_ns)


@pytest.mark.parametrize("rtt_ms", [1, 150, 300])
def test_a_death_is_noticed_within_two_seconds(rtt_ms: int) -> None:
    after_ns = [noticed_after_ns(rtt_ms * MS, phase_ns=phase_ns) for phase_ns in range(0, BEAT_NS, 50 * MS)]
    assert max(after_ns) <= 2 * SECOND
    assert min(after_ns) > SECOND, "one lost sign of life is no silence"
