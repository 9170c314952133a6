"""BalanceRoute's Table 3 on public loads: the scores of each kind of predictor, with the paper's beside them.

It scores and lays out; it chooses nothing and plays no worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import to_builtins

from gateway.core.features.disaggregated.predictors.arrays import PredictorKind, PromptKey
from gateway.core.features.disaggregated.predictors.estimator import UNKNOWN_PROMPT
from gateway.core.features.disaggregated.predictors.history import Snapshot
from gateway.features.disaggregated.fit.fitting import FitRules, score_predictor
from gateway.features.disaggregated.fit.trees import TooLittle
from loadgen.figures import Figures
from loadgen.pages import markdown
from loadgen.studies.predictors.workloads import PredictorWorkload

HORIZON = 48
OnProgress = Callable[[str], object]


class Realization(NamedTuple):
    """One kind of predictor, with its key."""

    name: str
    kind: PredictorKind
    key_kind: PromptKey = PromptKey.PROMPT


REALIZATIONS = (
    Realization("Survival", PredictorKind.SURVIVAL),
    Realization("ExactMatch, by prompt", PredictorKind.EXACT_MATCH, PromptKey.PROMPT),
    Realization("ExactMatch, by length", PredictorKind.EXACT_MATCH, PromptKey.LENGTH),
    Realization("ExactMatch, by prompt or length", PredictorKind.EXACT_MATCH, PromptKey.PROMPT_OR_LENGTH),
    Realization("Learned", PredictorKind.LEARNED),
)


class PublishedPredictor(NamedTuple):
    dataset: str
    realization: str
    auc: float
    mae_tokens: float


_COLUMNS = (
    ("leaving_share", ".1%"),
    ("auc", ".3f"),
    ("brier", ".4f"),
    ("mae_tokens", ".1f"),
    ("expected_rms_steps", ".2f"),
    ("anchor_rms_steps", ".2f"),
    ("believed_share", ".1%"),
    ("believed_right_share", ".1%"),
)
PAPER = (
    PublishedPredictor("Azure-2024", "Survival", 0.993, 5.4),
    PublishedPredictor("Azure-2024", "ExactMatch", 0.995, 5.4),
    PublishedPredictor("its own, heavy-tailed", "Survival", 0.700, 20.1),
    PublishedPredictor("its own, heavy-tailed", "ExactMatch", 0.974, 2.9),
)
"""BalanceRoute, Table 3."""


def table_3(
    workloads: Iterable[PredictorWorkload], *, horizon: int = HORIZON, on_progress: OnProgress = lambda _: None
) -> list[Figures]:
    """Row for each workload and each kind of predictor: JSON-able. Raises TraceError. A row that cannot be scored has
    the reason."""
    rows = []
    for workload in workloads:
        on_progress(f"{workload.name}: reading")
        snapshot = workload.read()
        for each in _realizations(snapshot):
            on_progress(f"{workload.name}: {each.name}")
            rows.append(_row(workload.name, snapshot, each, horizon))
    return rows


def _realizations(snapshot: Snapshot) -> list[Realization]:
    """Realizations that make sense for a history: without known prompts, matching prompts is the same as Survival."""
    has_prompts = any(each.prompt_key != UNKNOWN_PROMPT for each in snapshot.ended)
    return [
        each
        for each in REALIZATIONS
        if has_prompts or each.kind is not PredictorKind.EXACT_MATCH or each.key_kind is PromptKey.LENGTH
    ]


def _row(name: str, snapshot: Snapshot, realization: Realization, horizon: int) -> Figures:
    rules = FitRules(realization.kind, horizon, key_kind=realization.key_kind)
    scores, unscored = None, ""
    try:
        scores = to_builtins(score_predictor(snapshot, rules))
    except TooLittle as reason:
        unscored = str(reason)
    return {
        "workload": name,
        "realization": realization.name,
        "horizon": horizon,
        "requests": len(snapshot.ended),
        "scores": scores,
        "unscored": unscored,
    }


def as_markdown(rows: Sequence[Figures]) -> str:
    """Table of the measured scores, then the paper's."""
    head = ("workload", "realization", "leave", "AUC", "Brier", "MAE", "ĉ", "ĉ without", "believed", "right")
    ours = [_cells(row) for row in rows]
    theirs = [
        (each.dataset, f"{each.realization} (paper)", markdown.NOTHING, f"{each.auc:.3f}", markdown.NOTHING,
         f"{each.mae_tokens:.1f}", *[markdown.NOTHING] * 4)
        for each in PAPER
    ]  # fmt: skip
    return markdown.table(head, [*ours, *theirs])


def _cells(row: Figures) -> tuple[str, ...]:
    scores = row["scores"] or {}
    shown = (markdown.NOTHING if scores.get(key) is None else format(scores[key], form) for key, form in _COLUMNS)
    return (row["workload"], row["realization"], *shown)
