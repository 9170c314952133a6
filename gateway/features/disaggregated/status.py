"""Disaggregated pools in `nightside gateway status`: the decode policy of each, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.table import Table

from gateway.features.status import StatusView, plain, table_of
from mesh.problems import Problem, Runbook


class PredictorView(msgspec.Struct, frozen=True):
    kind: str
    fits: int
    problem: str


class DecodePoolView(msgspec.Struct, frozen=True):
    name: str
    policy: str
    policy_by: str
    files_not_read: list[str]
    predictor: PredictorView | None = None
    is_degraded: bool = False
    """The policy ran as `br_0` at its last tick, for lack of a predictor."""

    def why_degraded(self) -> str:
        if self.predictor is None:
            return "it has no predictor"
        if self.predictor.problem:
            return self.predictor.problem
        return "its predictor is too old or unusable" if self.predictor.fits else "no predictor has been fitted yet"


class DisaggregatedView(StatusView, frozen=True):
    """Disaggregated pools of a gateway that has any."""

    pools: list[DecodePoolView]

    def problems(self) -> Iterator[Problem]:
        for each in self.pools:
            if each.files_not_read:
                text = (
                    f"pool {each.name} is served without {', '.join(each.files_not_read)}, which may not be read here"
                )
                yield Problem(text, "pool_file_not_read", each.name, Runbook.REPLICAS_LEFT_OUT)

            if each.is_degraded:
                text = f"pool {each.name} runs as br_0 instead of {each.policy}: {each.why_degraded()}"
                yield Problem(text, "pool_without_predictor", each.name, "NightsideDecodeDegraded")

    def tables(self) -> Iterator[Table]:
        table = table_of(("Disaggregated pool", "Decode policy", "Chosen by", "Predictor"), ("Fits",))
        for each in self.pools:
            kind, fits = ("", "") if each.predictor is None else (each.predictor.kind, each.predictor.fits)
            table.add_row(*map(plain, (each.name, each.policy, each.policy_by, kind, fits)))
        yield table
