"""Page of one fit of expert locality: how well signatures predict which experts requests share during decode, by kind
of signature and number of layers; and the clusters. It shows the document it is given."""

from __future__ import annotations

from loadgen.figures import Figures
from loadgen.pages.drawing import Line, Picture, cloud, lines
from loadgen.pages.tables import Table, TableCell, TablePart, TableRow
from loadgen.pages.templates import render


def eldr_page(document: Figures) -> str:
    scores = document["scores"]
    return render(
        "eldr.html",
        title=f"Expert locality, {document['clusters']} workers",
        document=document,
        scores=scores,
        table=scores and _rhos(scores),
        curves=_curves(document),
        sizes=_sizes(document),
        picture=_picture(document["plane"]),
    )


def _rhos(scores: Figures) -> Table:
    rows = [TableRow(name, [TableCell(f"{rho:.3f}")]) for name, rho in scores["transformations"].items()]
    rows.append(TableRow("count-idf, chosen layers", [TableCell(f"{scores['masked']:.3f}")]))
    return Table("ρ by what a signature is made of", ["", "ρ"], [TablePart("", rows)])


def _curves(document: Figures) -> Picture:
    curves = [Line("fitted to", list(enumerate(document["rho"], 1)))]
    if document["scores"]:
        curves.append(Line("held out", list(enumerate(document["scores"]["by_layers"], 1))))
    return lines(f"ρ by layers kept; {document['layers_kept']} are", curves, "layers kept", "ρ")


def _sizes(document: Figures) -> Table:
    rows = [TableRow(str(number), [TableCell(str(size))]) for number, size in enumerate(document["sizes"])]
    return Table("Requests of the calibration by cluster", ["cluster", "requests"], [TablePart("", rows)])


def _picture(plane: Figures) -> Picture:
    groups = [Line(name, [(x, y) for x, y in points]) for name, points in plane["groups"].items()]
    return cloud("Signatures on their first two principal components", groups, [(x, y) for x, y in plane["centroids"]])
