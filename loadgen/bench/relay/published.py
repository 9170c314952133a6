"""Loads that LiteLLM and llm-d publish figures of, as the bench repeats them on one core, and the published figures.

Theirs were measured on other machines, with more of their features on; they stand beside ours as what was published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.bench.relay.figures import RelayFigure

BYTES_PER_TOKEN = 4
"""Bytes of English text that make a token, roughly, by tokenizers of today."""
PROMPT_TOKENS = (50_000, 75_000, 100_000)
"""Lengths of the prompts of LiteLLM's load test, in equal shares; half of the answers are streamed."""
ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class PublishedJob:
    """A job of llm-d's, and the part of it that is measured here: its rate is scaled to the published one."""

    prompt_tokens: int
    answer_tokens: int
    published_per_s: float
    count: int
    arrivals_per_s: float
    pace_s: float
    prompts: int


JOBS: Mapping[RelayFigure, PublishedJob] = {
    RelayFigure.SHORT_JOB_CORES: PublishedJob(200, 100, 500.0, 150, 75.0, 0.01, 64),
    RelayFigure.LONG_JOB_CORES: PublishedJob(100_000, 1_000, 98.8, 16, 8.0, 0.004, 8),
}


ELAPSED: Mapping[RelayFigure, RelayFigure] = {
    RelayFigure.SHORT_JOB_CORES: RelayFigure.SHORT_JOB_S,
    RelayFigure.LONG_JOB_CORES: RelayFigure.LONG_JOB_S,
}
"""Figure of the time from a job's first arrival to its last answer, by the figure of its cores."""


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A figure that another project published, with the conditions that differ from the bench's."""

    whose: str
    value: float
    conditions: str


PUBLISHED: Mapping[RelayFigure, PublishedFigure] = {
    RelayFigure.LONG_PROMPTS_PER_CPU_S: PublishedFigure(
        "LiteLLM",
        22.7,
        "3,000 requests/s on 132 requested vCPUs, with virtual keys, budgets, spend tracking and a mock model in the"
        " process ([benchmarks](https://docs.litellm.ai/docs/benchmarks))",
    ),
    RelayFigure.SHORT_JOB_CORES: PublishedFigure(
        "llm-d",
        7.02,
        "endpoint picker 4.94 and Envoy 2.08 cores at 500 requests/s, highest of samples of 5 s, from a study in the"
        " [performance tests](https://github.com/llm-d/llm-d-router/tree/main/test/perf) of its repository",
    ),
    RelayFigure.LONG_JOB_CORES: PublishedFigure(
        "llm-d",
        53.8,
        "endpoint picker 46.5 cores at 98.8 requests/s and Envoy 7.3 at 100, each the highest sample, with 100 engines"
        " that it asks for metrics, 7.5 cores without requests, and a shared prompt of 95,000 tokens"
        " ([operations](https://github.com/llm-d/llm-d-router/blob/main/docs/operations.md))",
    ),
}
