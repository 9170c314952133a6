"""Measures the cost per chunk of keeping an answer resumable, for answers that do not break.

The bench of relays measures the whole gateway, on one core under each setting, in rotating order. The added cost is
less than two such runs differ by, so it is measured by itself as well: the code that a chunk passes, in one process,
with slices with and without it in turn. It judges nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.core.vocabulary import Extra
from gateway.features.resume.transcript import Transcript
from gateway.request.engine_api import CHAT_PATH
from gateway.request.event_scanner import EventScanner
from gateway.request.extras import Withheld
from loadgen.bench.relay import wire
from loadgen.bench.relay.figures import RelayFigure
from loadgen.bench.relay.measures import MeasureName
from loadgen.bench.relay.relays import NIGHTSIDE, TOKEN_IDS, UNRESUMED
from loadgen.demo.processes import DemoFailure
from loadgen.studies.numbers import Middle, middle_of

_ROUND_S = 180
_SHORT, _LONG = 250, 2_000
"""Chunks of a stream: few enough to be kept unparsed, and 450 KB, which are parsed and merged several times."""
_SLICES = 60


@dataclass(frozen=True, slots=True)
class ResumeCost:
    setting: str
    chunk_us: Middle
    ratio: Middle
    """Ratio to the cost without resume, round by round."""


def measure_costs(rounds: int) -> list[ResumeCost]:
    """Cost of a chunk in the whole gateway. Raises DemoFailure with the output of the bench."""
    relays = (UNRESUMED, NIGHTSIDE, TOKEN_IDS)
    names = [f"--only={each.name}" for each in relays]
    command = [sys.executable, "-m", "nightside", "bench", "relay", *names, f"--measure={MeasureName.CHUNKS}"]
    done = subprocess.run(  # noqa: S603
        [*command, f"--rounds={rounds}", "--json"],
        capture_output=True,
        text=True,
        timeout=rounds * _ROUND_S,
        check=False,
    )
    if done.returncode:
        raise DemoFailure(f"the bench of relays: {done.stderr.strip()}")
    return costs_of(json.loads(done.stdout)["readings"])


def costs_of(readings: Sequence[dict[str, object]]) -> list[ResumeCost]:
    """Costs from the readings of the bench."""
    told: dict[str, dict[object, float]] = {}
    for each in readings:
        value = each.get(RelayFigure.CPU_PER_CHUNK)
        if isinstance(value, float) and not each["process"]:
            told.setdefault(str(each["relay"]), {})[each["round"]] = value
    base = told.get(UNRESUMED.name, {})
    costs = []
    for setting, relay in (("off", UNRESUMED), ("text", NIGHTSIDE), ("token ids", TOKEN_IDS)):
        values = told.get(relay.name, {})
        chunk_us = middle_of(values.values())
        ratio = middle_of(value / base[number] for number, value in values.items() if number in base)
        if chunk_us is not None and ratio is not None:
            costs.append(ResumeCost(setting, chunk_us, ratio))
    return costs


def measure_added(slices: int = _SLICES) -> dict[str, Middle]:
    """Added µs of CPU per chunk, by what is kept of the answer."""
    more: dict[str, list[float]] = {}
    for _ in range(slices):
        for name, stream, chunk, chunks in (
            ("text, up to 64 KiB of events", _kept, wire.TOKEN_EVENT, _SHORT),
            ("text, longer answers", _kept, wire.TOKEN_EVENT, _LONG),
            ("token ids", _kept_with_ids, wire.TOKEN_EVENT_WITH_ID, _LONG),
        ):
            without = _spent_us(_unkept, wire.TOKEN_EVENT, chunks)
            more.setdefault(name, []).append(_spent_us(stream, chunk, chunks) - without)
    added = {name: middle_of(values) for name, values in more.items()}
    return {name: middle for name, middle in added.items() if middle is not None}


def _spent_us(stream: Callable[[], Callable[[bytes], object]], chunk: bytes, chunks: int) -> float:
    """Microseconds of CPU per chunk, with as many streams as needed."""
    pieces = [bytes(bytearray(chunk)) for _ in range(chunks)]  # each is an object of its own, as from a socket
    streams = [stream() for _ in range(_LONG // chunks)]
    began_ns = time.process_time_ns()
    for take in streams:
        for each in pieces:
            take(each)
    return (time.process_time_ns() - began_ns) / (chunks * len(streams)) / 1000


def _has_room(_: object) -> bool:
    return True


def _unkept() -> Callable[[bytes], object]:
    feed = EventScanner().feed
    return lambda data: _has_room(feed(data))


def _kept() -> Callable[[bytes], object]:
    feed, put = EventScanner().feed, Transcript(CHAT_PATH, _has_room, _has_room).put
    return lambda data: put(feed(data))


def _kept_with_ids() -> Callable[[bytes], object]:
    """Stream whose kept text includes the token ids that are withheld from the client."""
    scanner, keep = EventScanner(), Transcript(CHAT_PATH, _has_room, _has_room).keep
    withheld = Withheld((Extra.TOKEN_IDS,))

    def take(data: bytes) -> bool:
        released = scanner.feed(data)
        keep(released)
        return _has_room(withheld.feed(released, is_crossing=scanner.is_crossing))

    return take
