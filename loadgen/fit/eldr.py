"""`nightside fit eldr`: fits the clusters that map a request to the decode worker of its experts, evaluates the fit and
writes the artifact.

A gateway runs it as well, in a separate process, when its set of decode workers changes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from msgspec import to_builtins
from rich.console import Console

from gateway.core.features.expert_locality.artifact import EldrArtifact, centroids_of, digest_of
from gateway.core.nearness import CLUSTERS_MAX
from gateway.features.expert_locality.files import eldr_file, read_eldr
from loadgen.fit.seats import write_seats
from loadgen.pages.eldr import eldr_page
from mesh.clock import Clock
from mesh.state_files import StateUnusable

if TYPE_CHECKING:
    from gateway.features.expert_locality.fit.eldr import EldrFit

_NICENESS = 10
_SECOND_NS = 1_000_000_000
_POINTS_MAX = 600
"""Points in the report's picture."""


@click.command()
@click.option("--calibration", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Read the calibration from this file of JSON lines, recorded by the plug-in.")  # fmt: skip
@click.option("--workers", required=True, type=click.IntRange(1, CLUSTERS_MAX),
              help="Set the number of decode workers, or of groups that share their experts.")  # fmt: skip
@click.option("--previous", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Keep the cluster order of this earlier artifact.")  # fmt: skip
@click.option("--held-out", type=click.FloatRange(0, 0.9), default=0.25, show_default=True,
              help="Hold out this share of documents for scores.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Set the seed of drawn pairs and first centroids.")
@click.option(
    "--ranks", type=click.IntRange(1, 1024), help="Place experts on this many ranks of a decode worker as well."
)
@click.option(
    "--placement",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the placement of each cluster, seat-N.json, to this folder, with an index; needs --ranks.",
)
@click.option(
    "--engine",
    type=click.Choice(["sglang", "vllm-ascend"]),
    default="sglang",
    show_default=True,
    help="Write placements in the form of this engine.",
)
@click.option(
    "--dense-layers",
    type=click.IntRange(0, 1000),
    default=0,
    show_default=True,
    help="Count this many layers without experts before the first that has them; for sglang alone.",
)
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page of the scores to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON; progress goes to stderr.")
@click.option("--background", is_flag=True, help="Run at the lowest priority, without scores.")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the artifact to this file.",
)
def eldr(
    *, calibration: Path, workers: int, previous: Path | None, held_out: float, seed: int, ranks: int | None,
    placement: Path | None, engine: str, dense_layers: int, report: Path | None, as_json: bool, background: bool,
    out: Path,
) -> None:  # fmt: skip
    """Fit expert locality (ELDR) to a calibration, for a number of decode workers, and write it to OUT.

    OUT holds plain arrays and no code. It is fitted to all requests; its scores are those of the same fit without the
    documents that it is scored on.

    Exit codes: 0 it was fitted and written, 1 the calibration cannot be used, or is too small, 2 the command was used
    wrongly.
    """
    if (ranks is None) != (placement is None):
        raise click.UsageError("--ranks and --placement belong together")
    if dense_layers and engine != "sglang":
        raise click.UsageError(f"--dense-layers: the form of {engine} numbers layers with experts alone")
    if background:
        os.nice(_NICENESS)
    clock = Clock()
    begun_ns = clock.now_ns()
    progress = Console(stderr=True)
    with progress.status("reading") as status:
        made = _fit(
            calibration, previous, status.update, workers=workers, held_out=0.0 if background else held_out, seed=seed
        )
        placed = [] if ranks is None else _placed(made, ranks, engine, dense_layers)
        took_s = (clock.now_ns() - begun_ns) / _SECOND_NS
        document = _document(made, calibration.name, str(out), took_s)
        _write(made.artifact, out, placed, placement, engine)
        if report is not None:
            _write_report(report, document | {"plane": _plane(made)})
    click.echo(json.dumps(document, indent=2) if as_json else _in_words(document))


def _fit(path: Path, previous: Path | None, on_progress: Any, *, workers: int, held_out: float, seed: int) -> EldrFit:
    try:
        from gateway.features.expert_locality.fit.balanced_kmeans import TooFewPoints  # noqa: PLC0415 - an optional extra
        from gateway.features.expert_locality.fit.eldr import EldrRules, fit_eldr  # noqa: PLC0415
        from gateway.features.expert_locality.fit.eldr_calibration import UnusableCalibration, read_calibration  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException(f"{error}: fitting needs the extra `fit` (pip install 'nightside[fit]')") from error
    try:
        rules = EldrRules(workers, held_out, seed)
        return fit_eldr(read_calibration(path), rules, on_progress, None if previous is None else read_eldr(previous))
    except (UnusableCalibration, TooFewPoints, StateUnusable) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or path} cannot be read: {error.strerror}") from error


def _placed(made: EldrFit, ranks: int, engine: str, dense_layers: int) -> list[dict[str, Any]]:
    """Placement of each cluster, in the engine's form."""
    from gateway.features.expert_locality.fit.engine_placement import PlacementForm, placement_document  # noqa: PLC0415
    from gateway.features.expert_locality.fit.expert_placement import UnevenRanks, place_by_cluster  # noqa: PLC0415

    kept = made.kept
    assert kept is not None, "a fit keeps its calibration"
    try:
        placement = place_by_cluster(kept.decode, made.labels, made.artifact.clusters, ranks)
    except UnevenRanks as error:
        raise click.ClickException(f"--ranks: {error}") from error
    form = PlacementForm(engine)
    return [placement_document(form, each, ranks, dense_layers=dense_layers) for each in placement]


def _document(made: EldrFit, source: str, out: str, took_s: float) -> dict[str, Any]:
    artifact = made.artifact
    return {
        "artifact": out,
        "digest": digest_of(artifact),
        "source": source,
        "requests": len(made.labels),
        "dropped": made.dropped,
        "clusters": artifact.clusters,
        "sizes": made.sizes,
        "model_layers": artifact.shape.layers,
        "model_experts": artifact.shape.experts,
        "layers_kept": len(artifact.mask),
        "mask": list(artifact.mask),
        "rho": list(artifact.rho),
        "fitted_by": f"NumPy {np.__version__}",
        "took_s": took_s,
        "scores": made.scores and to_builtins(made.scores),
        "unscored": made.unscored,
    }


def _plane(made: EldrFit) -> dict[str, Any]:
    """Signatures and centroids on the first two principal components of the signatures."""
    kept = made.kept
    assert kept is not None, "a fit keeps its calibration"
    step = max(1, len(made.points) // _POINTS_MAX)
    points = made.points[::step]
    middle = points.mean(axis=0)
    axes = np.linalg.svd(points - middle, full_matrices=False)[2][:2]
    names = [name or "requests" for name in kept.domains[::step]]
    flat = ((points - middle) @ axes.T).round(4).tolist()
    groups: dict[str, list[list[float]]] = {name: [] for name in dict.fromkeys(names)}
    for name, point in zip(names, flat, strict=True):
        groups[name].append([*point, 0.0][:2])
    centroids = ((centroids_of(made.artifact) - middle) @ axes.T).round(4).tolist()
    return {"groups": groups, "centroids": [[*point, 0.0][:2] for point in centroids]}


def _write(artifact: EldrArtifact, out: Path, placed: list[dict[str, Any]], folder: Path | None, engine: str) -> None:
    try:
        eldr_file(out).write(artifact)
        if folder is not None:
            write_seats(folder, placed, digest_of(artifact), engine)
    except OSError as error:
        raise click.ClickException(f"{error.filename or out} cannot be written: {error.strerror}") from error


def _write_report(report: Path, document: dict[str, Any]) -> None:
    try:
        report.write_text(eldr_page(document), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{report} cannot be written: {error.strerror}") from error


def _in_words(document: dict[str, Any]) -> str:
    told = [
        f"{document['artifact']}: {document['clusters']} clusters of {min(document['sizes'])} to "
        f"{max(document['sizes'])} requests, {document['layers_kept']} of {document['model_layers']} layers, in "
        f"{document['took_s']:.1f} s"
    ]
    if document["dropped"]:
        told.append(f"{document['dropped']} requests said nothing, and were left out")
    scores = document["scores"]
    if not scores:
        return "\n".join([*told, document["unscored"]])
    shown = ", ".join(f"{name} {rho:.3f}" for name, rho in scores["transformations"].items())
    told.append(
        f"ρ on {scores['requests']:,} requests of other documents: {scores['masked']:.3f} ({shown} of all layers)"
    )
    return "\n".join(told)
