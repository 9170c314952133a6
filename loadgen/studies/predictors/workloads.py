"""Loads for evaluating predictors: recorded ones, with capped and uncapped outputs, and synthetic ones for choosing
defaults, which appear in no table of the results."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from gateway.core.features.disaggregated.predictors.history import Snapshot
from loadgen.fit.sources import Request, history_of, history_of_trace
from loadgen.studies.recordings import AZURE_CHATS, MOONCAKE, SERVEGEN, SERVEGEN_SCALE, all_files, first_file
from loadgen.traces.files import Draw, read_trace
from loadgen.traces.rows import Trace

REQUESTS_MAX = 20_000
"""Number of requests in a gateway's history, by default."""
REASONING = "ServeGen, reasoning"
CAPPED = "Azure 2023, conversation"
CAPPED_LONG = "Azure 2023, at least 400 tokens"
RECURRING = "Mooncake, conversation"
_LONG_TOKENS = 400


@dataclass(frozen=True, slots=True)
class PredictorWorkload:
    """A load, as the history of the decode worker that ran it."""

    name: str
    read: Callable[[], Snapshot]


def recorded(folder: Path | None) -> list[PredictorWorkload]:
    """Loads whose files are in the folder, under the names that they are published with."""
    found: list[PredictorWorkload] = []
    if servegen := all_files(folder, SERVEGEN):
        draw = Draw(servegen[1], rate_scale=SERVEGEN_SCALE)
        found.append(_workload(REASONING, lambda: read_trace(servegen[0], draw=draw)))
    if azure := first_file(folder, AZURE_CHATS):
        found.append(_workload(CAPPED, lambda: read_trace(azure)))
        found.append(_workload(CAPPED_LONG, lambda: _long_ones(read_trace(azure))))
    if mooncake := first_file(folder, MOONCAKE):
        found.append(_workload(RECURRING, lambda: read_trace(mooncake)))
    return found


def _workload(name: str, read: Callable[[], Trace]) -> PredictorWorkload:
    return PredictorWorkload(name, lambda: history_of_trace(read(), requests_max=REQUESTS_MAX))


def _long_ones(trace: Trace) -> Trace:
    """Requests with long answers; BalanceRoute leaves out short answers as well, with a bound that is not in its
    text."""
    return replace(trace, rows=[row for row in trace.rows if row.output_tokens >= _LONG_TOKENS])


# Synthetic, and held out


def kept_aside(requests: int = REQUESTS_MAX, seed: int = 1) -> list[PredictorWorkload]:
    """Two synthetic loads: recurring prompts with long-tailed answers, and chats of which many are cut off at a
    limit."""
    kinds = {"made up: prompts that recur": _recurring, "made up: chats with a limit": _limited}
    return [PredictorWorkload(name, partial(_made_up, name, make, requests, seed)) for name, make in kinds.items()]


def _made_up(name: str, make: Callable[[random.Random], Iterator[Request]], requests: int, seed: int) -> Snapshot:
    return history_of(islice(make(random.Random(f"{seed}/{name}")), requests))


def _recurring(rng: random.Random) -> Iterator[Request]:
    """Requests of which a third comes from 300 templates, popular ones more often; a template's answers are about
    equally long."""
    usual = [round(rng.lognormvariate(6.0, 1.2)) + 1 for _ in range(300)]
    at_s = 0.0
    while True:
        at_s += rng.expovariate(6.0)
        if rng.random() < 1 / 3:
            number = min(int(rng.paretovariate(0.7)) - 1, 299)
            output = round(usual[number] * rng.lognormvariate(0.0, 0.15)) + 1
            yield Request(at_s, number + 1, 200 + 10 * number, min(output, 32_000))
        else:
            prompt = round(rng.lognormvariate(6.5, 1.0)) + 1
            yield Request(at_s, 0, prompt, min(round(rng.lognormvariate(6.3, 1.3)) + 1, 32_000))


def _limited(rng: random.Random) -> Iterator[Request]:
    """Requests whose longer prompts have longer answers, with a drift over time, and never more than 1,024 tokens."""
    at_s = 0.0
    while True:
        at_s += rng.expovariate(8.0)
        drift = 1.0 + 0.3 * (at_s // 600 % 2)
        prompt = round(rng.lognormvariate(6.0, 1.1)) + 1
        output = drift * 20 * prompt**0.5 * rng.lognormvariate(0.0, 0.6)
        yield Request(at_s, 0, prompt, max(1, min(round(output), 1024)))
