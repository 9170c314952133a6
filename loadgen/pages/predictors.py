"""Page of one fitted predictor: its data, its scores beside those of trivial predictions, and the calibration of its
probabilities. It shows the document that it is given, and nothing that is not in it."""

from __future__ import annotations

from loadgen.figures import Figures
from loadgen.pages.drawing import Line, Picture, lines
from loadgen.pages.markdown import NOTHING
from loadgen.pages.tables import Table, TableCell, TablePart, TableRow
from loadgen.pages.templates import render


def predictor_page(document: Figures) -> str:
    scores = document["scores"]
    return render(
        "predictor.html",
        title=f"{document['kind']}, {document['horizon']} steps ahead",
        document=document,
        scores=scores,
        table=scores and _table(scores),
        picture=scores and reliability(scores["bins"]),
    )


def reliability(bins: list[Figures]) -> Picture:
    """Reliability diagram in percent: predicted probability to the right, observed share upwards. The diagonal is
    perfect."""
    said = Line("as it came", [(round(100 * each["said"]), 100 * each["left"]) for each in bins])
    return lines(
        "Who left within the horizon, by what was said of them",
        [said, Line("as it was said", [(0.0, 0.0), (100.0, 100.0)])],
        "probability said, %",
        "share that left, %",
    )


def _table(scores: Figures) -> Table:
    rows = [
        _row("stage 1: AUC", scores["auc"], "0.5 is chance"),
        _row("stage 1: Brier", scores["brier"], f"{scores['brier_of_share']:.4f} for always saying the mean"),
        _row("stage 2: mean error, tokens", scores["mae_tokens"], "of those who left"),
        _row("together: error of ĉ, steps, root mean square", scores["expected_rms_steps"],
             f"{scores['anchor_rms_steps']:.2f} without a predictor"),
        _row("believed", scores["believed_share"], "of questions"),
        _row("right, where believed", scores["believed_right_share"], "did leave"),
    ]  # fmt: skip
    return Table("Scores", ["", "", "beside"], [TablePart("", rows)])


def _row(name: str, value: float | None, beside: str) -> TableRow:
    return TableRow(name, [TableCell(NOTHING if value is None else f"{value:.4f}"), TableCell(beside)])
