"""Sections of a scenario about batches. Values only."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from loadgen.simulator.sections import Count, Duration, Moment, ScenarioSection, Share

_SECOND_NS = 1_000_000_000


class BatchSection(ScenarioSection):
    """File of requests that a client hands in at one moment."""

    region: str
    """Region whose gateways hold it."""
    workload: str
    """Kind of programs; each line is the first request of one."""
    tenant: str = "default"
    lines: Count
    at: Moment = 0
    window: Duration
    """Time within which all lines should be done; those that are not expire."""

    @model_validator(mode="after")
    def _is_long_enough(self) -> Self:
        if self.window < _SECOND_NS:
            raise ValueError("window: should be at least 1s")
        return self


class BatchesSection(ScenarioSection):
    """Files of requests, and how gateways run them; the keys are those of a region file's section `batches`."""

    files: Annotated[tuple[BatchSection, ...], Field(min_length=1)]
    requests_max: Count = 32
    """Lines that wait or run at once at one gateway."""
    urgent_share: Share = 0.1
    lease: Duration = 15 * _SECOND_NS
