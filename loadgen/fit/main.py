"""`nightside fit predictor`: fits predictors of remaining decode length, evaluates them, and writes the artifact.

A gateway runs it as well, in a separate process, for predictors whose fit takes more than sorting.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins
from rich.console import Console

from gateway.core.features.disaggregated.predictors.arrays import PredictorKind, PromptKey
from gateway.core.features.disaggregated.predictors.history import Snapshot
from gateway.features.disaggregated.files import artifact_file, artifact_of
from loadgen.fit.eldr import eldr
from loadgen.fit.sources import TOKEN_S, history_from, history_of_trace
from loadgen.pages.predictors import predictor_page
from loadgen.shipped import TRACE
from loadgen.traces.files import Draw, TraceError, read_trace
from mesh.clock import Clock
from mesh.state_files import StateUnusable

if TYPE_CHECKING:
    from gateway.features.disaggregated.fit.fitting import Fit

_NICENESS = 10
_HORIZON_MAX = 4096


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def fit() -> None:
    """Train predictors and expert locality offline, for gateways to load."""


fit.add_command(eldr)


@fit.command()
@click.option("--history", type=click.Path(path_type=Path), help="Read a gateway's history, GATEWAY.POOL.history.json.")
@click.option("--trace", type=TRACE, help="Read a recorded trace instead of a history.")
@click.option(
    "--rates",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read ServeGen's rates from this file.",
)
@click.option(
    "--rate-scale", type=click.FloatRange(0, min_open=True), default=1.0, help="Scale ServeGen's number of requests."
)
@click.option("--token-s", type=click.FloatRange(0), default=TOKEN_S, show_default=True,
              help="Set the seconds per token of a trace that does not tell.")  # fmt: skip
@click.option(
    "--kind", required=True, type=click.Choice([str(each) for each in PredictorKind]), help="Set the kind of predictor."
)
@click.option("--key", "key_kind", type=click.Choice([str(each) for each in PromptKey]),
              default=str(PromptKey.PROMPT_OR_LENGTH), show_default=True,
              help="Set by what exact_match compares prompts.")  # fmt: skip
@click.option(
    "--horizon",
    type=click.IntRange(1, _HORIZON_MAX),
    default=48,
    show_default=True,
    help="Predict this many steps ahead (H).",
)
@click.option("--held-out", type=click.FloatRange(0, 0.9), default=0.25, show_default=True,
              help="Hold out this newest share of requests for scores.")  # fmt: skip
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page of the scores to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON; progress goes to stderr.")
@click.option("--background", is_flag=True, help="Run at the lowest priority.")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the artifact to this file.",
)
def predictor(
    *, out: Path, report: Path | None, as_json: bool, background: bool, horizon: int, held_out: float, kind: str,
    key_kind: str, history: Path | None, trace: Path | None, **described: Any,
) -> None:  # fmt: skip
    """Train one predictor on a history or a trace, and write it to OUT.

    OUT holds plain arrays and no code. It is fitted to all requests; its scores are those of the same fit to the older
    ones, on the newer ones.

    A predictor that is worse than none is written with a warning.

    Exit codes: 0 it was fitted and written, 1 the history cannot be used, or nothing can be learned from it, 2 the
    command was used wrongly.
    """
    if (history is None) == (trace is None):
        raise click.UsageError("name one of --history and --trace")
    if background:
        os.nice(_NICENESS)
    progress = Console(stderr=True)
    with progress.status("reading") as status:
        snapshot = _history(history, trace, described)
        made = _fit(snapshot, status.update, kind=kind, key_kind=key_kind, horizon=horizon, held_out=held_out)
        artifact = artifact_of(
            made.arrays, requests=len(snapshot.ended), wall_ns=Clock().wall_ns(), fitted_by=_fitted_by()
        )
        status.update("writing")
        document = {
            "kind": kind,
            "horizon": horizon,
            "requests": len(snapshot.ended),
            "source": str((history or trace or out).name),
            "fitted_by": artifact.fitted_by,
            "artifact": str(out),
            "scores": made.scores and to_builtins(made.scores),
            "unscored": made.unscored,
        }
        _write(out, report, artifact, document)
    click.echo(json.dumps(document, indent=2) if as_json else _in_words(document))
    if made.scores is not None and made.scores.expected_rms_steps >= made.scores.anchor_rms_steps:
        click.echo(
            f"warning: this predictor is worse than none: on the newest requests its error is "
            f"{made.scores.expected_rms_steps:.2f} steps, and that of expecting every request to stay is "
            f"{made.scores.anchor_rms_steps:.2f}; br_h balances less evenly with it than br_0",
            err=True,
        )


def _history(history: Path | None, trace: Path | None, described: dict[str, Any]) -> Snapshot:
    try:
        if history is not None:
            return history_from(history)
        assert trace is not None, "one of the two is given"
        draw = Draw(described["rates"], rate_scale=described["rate_scale"])
        return history_of_trace(read_trace(trace, draw=draw), token_s=described["token_s"])
    except (StateUnusable, TraceError) as error:
        raise click.ClickException(str(error)) from error


def _fit(snapshot: Snapshot, on_progress: Any, *, kind: str, key_kind: str, horizon: int, held_out: float) -> Fit:
    try:
        from gateway.features.disaggregated.fit.fitting import FitRules, fit_predictor  # noqa: PLC0415 - an optional extra
        from gateway.features.disaggregated.fit.trees import TooLittle  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException(f"{error}: fitting needs the extra `fit` (pip install 'nightside[fit]')") from error
    rules = FitRules(PredictorKind(kind), horizon, key_kind=PromptKey(key_kind), held_out=held_out)
    try:
        return fit_predictor(snapshot, rules, on_progress)
    except TooLittle as error:
        raise click.ClickException(str(error)) from error


def _fitted_by() -> str:
    import sklearn  # noqa: PLC0415 - see _fit

    return f"scikit-learn {sklearn.__version__}"


def _write(out: Path, report: Path | None, artifact: Any, document: dict[str, Any]) -> None:
    try:
        artifact_file(out).write(artifact)
        if report is not None:
            report.write_text(predictor_page(document), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{error.filename or out} cannot be written: {error.strerror}") from error


def _in_words(document: dict[str, Any]) -> str:
    first = f"{document['artifact']}: {document['kind']} of {document['requests']:,} requests"
    scores = document["scores"]
    if not scores:
        return f"{first}; {document['unscored']}"

    def shown(name: str, form: str) -> str:
        return "none" if scores[name] is None else format(scores[name], form)

    return (
        f"{first}\non the newest {scores['requests']:,}: AUC {shown('auc', '.3f')}, Brier {scores['brier']:.4f}, "
        f"error {shown('mae_tokens', '.1f')} tokens of those who left, {scores['expected_rms_steps']:.2f} steps (rms) "
        f"of all ({scores['anchor_rms_steps']:.2f} without)"
    )
