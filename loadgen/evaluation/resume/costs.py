"""What each chunk of an answer costs a gateway because the answer could go on, whether or not it breaks.

The bench of relays measures it, in a process of its own: the whole gateway on one core under each setting, in an order
that turns. It judges nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.bench.relay.figures import Figure
from loadgen.bench.relay.measures import MeasureName
from loadgen.bench.relay.relays import NIGHTSIDE, TOKEN_IDS, UNRESUMED
from loadgen.demo.processes import DemoFailure
from loadgen.evaluation.numbers import Middle, middle_of

_ROUND_S = 180


@dataclass(frozen=True, slots=True)
class Cost:
    setting: str
    chunk_us: Middle
    ratio: Middle
    """To that without resume, round by round."""


def measure_costs(rounds: int) -> list[Cost]:
    """Raises DemoFailure with what the bench says."""
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


def costs_of(readings: Sequence[dict[str, object]]) -> list[Cost]:
    """As the bench tells them."""
    told: dict[str, dict[object, float]] = {}
    for each in readings:
        value = each.get(Figure.CPU_PER_CHUNK)
        if isinstance(value, float) and not each["process"]:
            told.setdefault(str(each["relay"]), {})[each["round"]] = value
    base = told.get(UNRESUMED.name, {})
    costs = []
    for setting, relay in (("off", UNRESUMED), ("text", NIGHTSIDE), ("token ids", TOKEN_IDS)):
        values = told.get(relay.name, {})
        chunk_us = middle_of(values.values())
        ratio = middle_of(value / base[number] for number, value in values.items() if number in base)
        if chunk_us is not None and ratio is not None:
            costs.append(Cost(setting, chunk_us, ratio))
    return costs
