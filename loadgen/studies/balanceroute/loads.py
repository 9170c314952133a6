"""Loads of decode workers by short names: recorded ones for the tables, synthetic ones for choosing defaults, and two
that are held out. It draws and reads; it plays nothing.

Every load has earlier requests, to which predictors are fitted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gateway.core.features.disaggregated.predictors.estimator import UNKNOWN_PROMPT
from gateway.core.features.disaggregated.predictors.history import Ended
from loadgen.fit.sources import TOKEN_S, passage_key
from loadgen.planner.lengths import quantiles_of
from loadgen.planner.sources import cumulative
from loadgen.studies.predictors.workloads import kept_aside
from loadgen.studies.recordings import (
    AZURE_CHATS,
    AZURE_CURVES,
    MOONCAKE,
    SERVEGEN,
    SERVEGEN_SCALE,
    all_files,
    find_file,
)
from loadgen.traces.files import Draw, read_trace
from loadgen.traces.rows import Trace

LONG_TOKENS = 400
"""Minimum answer length of the Azure loads. The paper leaves out short answers as well; its bound is not published. The
same as in the table of predictors."""
_MADE_UP = 8_000
_KNOWN_MAX = 6_000
"""Maximum number of earlier requests that predictors are fitted to."""
_TOKEN_NS = round(TOKEN_S * 1e9)


@dataclass(frozen=True, slots=True)
class PrefilledRequest:
    """One request whose prefill is complete."""

    prompt_tokens: int
    output_tokens: int
    prompt_key: int = UNKNOWN_PROMPT


@dataclass(frozen=True, slots=True)
class OrderedLoad:
    """A load, in order of arrival."""

    earlier: Sequence[PrefilledRequest]
    """Requests that are not played: the history that predictors are fitted to."""
    later: Sequence[PrefilledRequest]

    def known(self) -> list[Ended]:
        return [
            Ended(each.prompt_key, each.prompt_tokens, each.output_tokens, 0, number)
            for number, each in enumerate(self.earlier[-_KNOWN_MAX:])
        ]


@dataclass(frozen=True, slots=True)
class Named:
    """A load by its name, and its title on the page."""

    name: str
    title: str
    read: Callable[[Path | None], list[PrefilledRequest]]
    patterns: tuple[str, ...] = ()
    """Files that it reads, beneath the folder of traces."""


def asked(named: Named, folder: Path | None, share_known: float = 0.4) -> OrderedLoad:
    """Requests of a load, split into earlier and later ones. Raises TraceError."""
    rows = _rows_of(named.name, folder)
    cut = int(len(rows) * share_known)
    return OrderedLoad(rows[:cut], rows[cut:])


@cache
def _rows_of(name: str, folder: Path | None) -> list[PrefilledRequest]:
    return LOADS[name].read(folder)


# Recorded


def _reasoning(folder: Path | None) -> list[PrefilledRequest]:
    service, rates = (find_file(folder, pattern) for pattern in SERVEGEN)
    return _asks_of(read_trace(service, draw=Draw(rates, rate_scale=SERVEGEN_SCALE)))


def _azure(folder: Path | None) -> list[PrefilledRequest]:
    return [each for each in _asks_of(read_trace(find_file(folder, AZURE_CHATS))) if each.output_tokens >= LONG_TOKENS]


def _azure_curves(folder: Path | None) -> list[PrefilledRequest]:
    """Requests drawn from the published curves of 2024, prompts and answers independently; shorter answers are drawn
    again."""
    prompts, answers = (quantiles_of(cumulative(find_file(folder, pattern))) for pattern in AZURE_CURVES)
    rng = random.Random("azure2024")
    found: list[PrefilledRequest] = []
    while len(found) < _MADE_UP:
        output_tokens = round(answers(rng.random()))
        if output_tokens >= LONG_TOKENS:
            found.append(PrefilledRequest(max(1, round(prompts(rng.random()))), output_tokens))
    return found


def _mooncake(folder: Path | None) -> list[PrefilledRequest]:
    return _asks_of(read_trace(find_file(folder, MOONCAKE)))


def _asks_of(trace: Trace) -> list[PrefilledRequest]:
    by_time = sorted(trace.rows, key=lambda row: row.at_s)
    return [
        PrefilledRequest(row.passage.tokens, row.output_tokens, passage_key(row.passage))
        for row in by_time
        if row.output_tokens > 0 and row.passage.tokens > 0
    ]


# Synthetic


def _made_up(number: int) -> Callable[[Path | None], list[PrefilledRequest]]:
    """Synthetic loads that predictors' defaults were chosen on, in order of arrival."""

    def read(_: Path | None) -> list[PrefilledRequest]:
        ended = kept_aside(_MADE_UP)[number].read().ended
        by_arrival = sorted(ended, key=lambda each: each.ended_ns - each.output_tokens * _TOKEN_NS)
        return [PrefilledRequest(each.prompt_tokens, each.output_tokens, each.prompt_key) for each in by_arrival]

    return read


def _agents(_: Path | None) -> list[PrefilledRequest]:
    """Synthetic load with long prompts and short answers, a few of them long."""
    rng = random.Random("agents")
    return [
        PrefilledRequest(
            min(60_000, round(rng.lognormvariate(9.0, 0.8))) + 1, min(16_000, round(rng.lognormvariate(5.0, 1.4))) + 8
        )
        for _ in range(_MADE_UP)
    ]


def _prompts(_: Path | None) -> list[PrefilledRequest]:
    """Synthetic load in which most of a request's tokens are its prompt, so that placement can balance the load."""
    rng = random.Random("prompts")
    return [
        PrefilledRequest(
            min(30_000, max(50, round(rng.lognormvariate(7.0, 1.0)))),
            min(4_000, max(8, round(rng.lognormvariate(5.6, 1.0)))),
        )
        for _ in range(_MADE_UP)
    ]


LOADS = {
    each.name: each
    for each in (
        Named("reasoning", "ServeGen, reasoning: a heavy tail", _reasoning, SERVEGEN),
        Named("capped", f"Azure 2023, answers of at least {LONG_TOKENS} tokens: capped", _azure, (AZURE_CHATS,)),
        Named(
            "azure2024",
            f"Azure 2024, answers of at least {LONG_TOKENS} tokens, drawn from its curves",
            _azure_curves,
            AZURE_CURVES,
        ),
        Named("prompts", "made up: heavy-tailed prompts, shorter answers", _prompts),
        Named("recurring", "made up: prompts that recur, a heavy tail", _made_up(0)),
        Named("limited", "made up: chats with a limit", _made_up(1)),
        Named("mooncake", "Mooncake, conversations", _mooncake, (MOONCAKE,)),
        Named("agents", "made up: agents, long prompts", _agents),
    )
}
TABLES = ("reasoning", "capped", "prompts")
CHOOSING = ("recurring", "limited")
ASIDE = ("mooncake", "agents")
ELSEWHERE = ("azure2024",)
"""Loads of the study of protocols alone."""


def present(folder: Path | None) -> list[str]:
    """Names of the loads whose files are present."""
    return [each.name for each in LOADS.values() if all_files(folder, each.patterns) is not None]
