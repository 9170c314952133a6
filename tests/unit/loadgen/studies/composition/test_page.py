"""The page omits no broken stream, and reports no missed target as met."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.vocabulary import RegionName
from loadgen.studies.composition.cases import HOME, CompositionOutcome, Stages
from loadgen.studies.composition.clients import StreamSeen
from loadgen.studies.composition.page import figures_of, page_of
from loadgen.studies.composition.samples import PoolSample

SECOND = 1_000_000_000
US = RegionName("us-east-1")
DEAD, ALIVE = "127.77.2.1", "127.77.1.1"
STAGES = Stages(0, 10 * SECOND, 11 * SECOND, 20 * SECOND, 25 * SECOND, 30 * SECOND)
MACHINE = {"cpu": "A CPU", "cores": 2, "memory_gib": 8, "kernel": "6", "python": "CPython 3.11", "core": "plain Python"}


def stream(sent_s: float, region: RegionName = HOME, ran_in: str = "", host: str = ALIVE, **more: object) -> StreamSeen:
    sent_ns = round(sent_s * SECOND)
    seen = StreamSeen(region, sent_ns, host, ran_in or region, sent_ns + SECOND // 2, SECOND // 10, 5, sent_ns + SECOND)
    for name, value in more.items():
        setattr(seen, name, value)
    return seen


def sample(at_s: float, gateway: str, *, policy: str = "br_h", is_degraded: bool = False, used: int = 0) -> PoolSample:
    return PoolSample(round(at_s * SECOND), gateway, policy, 30, 90, is_degraded, 1, used, used)


GOOD = CompositionOutcome(
    "BR-H",
    "br_h",
    STAGES,
    tuple(stream(at, region, to) for at in (1, 12, 21, 26) for region, to in ((HOME, US), (US, HOME))),
    (sample(1, "gw-home"), sample(12, "gw-us"), sample(21, "gw-us"), sample(26, "gw-home")),
    DEAD,
    "gw-us",
)
ELDR = replace(
    GOOD,
    case="ELDR",
    policy="eldr",
    samples=(
        sample(1, "gw-home", policy="eldr", used=1),
        sample(2, "gw-home", policy="eldr", used=9),
        sample(12, "gw-us", policy="eldr", used=1),
        sample(13, "gw-us", policy="eldr", used=5),
        sample(26, "gw-home", policy="eldr"),
    ),
)


def page(*outcomes: CompositionOutcome) -> str:
    return page_of(list(map(figures_of, outcomes)), {**MACHINE, "busy": 0.5})


def test_all_aims_are_met_by_what_meets_them() -> None:
    text = page(GOOD, ELDR)
    assert text.count("**met**") == 7
    assert "**not met**" not in text
    assert "| at home | 10.0 | 2 | 1 | 1 | 500 / 500 | 100 / 100 | 30 | 90 | 0% | – |" in text


@pytest.mark.parametrize(
    ("broken", "is_sound"),
    [
        (stream(9.5, host=DEAD, fault="cut"), False),
        (stream(9.5, host=ALIVE, fault="cut"), True),
        (stream(1, host=DEAD, fault="cut"), True),
        (stream(12, host="", fault="no process listens", tried=(DEAD,)), False),
        (stream(12, host="", fault="no process listens", tried=(ALIVE,)), True),
        (stream(26, host=DEAD, fault="cut"), True),
        (stream(26, host="", fault="no process listens", tried=(DEAD,)), True),
    ],
)
def test_only_the_killed_process_explains_a_broken_stream(broken: StreamSeen, is_sound: bool) -> None:
    text = page(replace(GOOD, streams=(*GOOD.streams, broken)), ELDR)
    assert ("**not met**: no stream breaks but those through the killed process (1 did)" in text) is is_sound
    assert f"1 × {'sound' if is_sound else 'killed'}: `{broken.fault}`" in text
    assert f"| BR-H | 9 | {int(not is_sound)} | {int(is_sound)} | 0 | gw-us |" in text


def test_one_bad_run_is_enough_to_miss_an_aim() -> None:
    late = (*GOOD.samples, sample(13, "gw-us", is_degraded=True))
    assert "**not met**: under BR-H, an adopted pool is never without its predictor (50%" in page(
        GOOD, replace(GOOD, samples=late), ELDR
    )
    other = (*GOOD.samples, sample(13, "gw-us", policy="br_0"))
    assert "**not met**: the pool is served by its own policy in every stage (also by br_0)" in page(
        replace(GOOD, samples=other)
    )
    hung = replace(GOOD, streams=(*GOOD.streams, stream(26, ended_ns=None)))
    assert "**not met**: every stream ends (1 did not)" in page(hung)
    none = tuple(replace(each, histories_taken=0) if each.gateway == "gw-us" else each for each in GOOD.samples)
    assert "**not met**: the history of the pool comes to the adopter" in page(GOOD, replace(GOOD, samples=none))


def test_nothing_that_was_not_measured_is_on_the_page() -> None:
    text = page(replace(GOOD, streams=(), samples=()))
    assert "| adopted | 9.0 | 0 | 0 | 0 | – | – | – | – | – | – |" in text
    assert "**not met**: requests overflow out of the pool's region (0) and into it (0)" in text
    assert "**not met**: under ELDR" in text
