"""Command `nightside explain`: shows why a request ran where it did, in sentences and tables. It only shows what the
gateways recorded; nothing is recomputed and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gateway.app.wording import headline, of_other_side, sentence, share
from gateway.core.vocabulary import GatewayId, RequestId, Standing, TargetKind
from gateway.features.recorded import WORDS
from gateway.features.words import in_ms, plain, rounded
from gateway.records.decisions import (
    ExplainedCandidate,
    ExplainedPlacement,
    ExplainedRequest,
    Explanation,
    OtherSide,
    decision_id,
)
from mesh.admin_client import Admin, AdminFault, admin_options

PLAIN_WIDTH = 110
"""Columns when the output is no terminal."""
_INELIGIBLE = frozenset(
    {
        Standing.NOT_ALLOWED,
        Standing.FAILED_BEFORE,
        Standing.UNHEALTHY,
        Standing.LOST,
        Standing.STALE,
        Standing.LEAVING,
        Standing.DISTRUSTED,
        Standing.NOT_ACCEPTING,
        Standing.BREAKER,
        Standing.TOO_SHORT,
        Standing.OTHER_IDENTITY,
    }
)
"""States in which a target takes no request, and for which no request is held."""


@click.command()
@click.argument("wanted", metavar="ID")
@admin_options
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")
def explain(admin: Admin, *, wanted: str, as_json: bool) -> None:
    """Say why a request ran where it did: which targets were looked at, and what spoke for and against each.

    ID is a request's id (`x-request-id`) or a decision's (`x-nightside-decision`). Ask the gateway that the client
    spoke to: it asks those that it forwarded to for their side. Only the latest requests are remembered.

    Exit codes: 0 explained, 1 not known, or the gateway cannot be asked.
    """
    answer = admin.ask("GET", f"/admin/explain/{quote(wanted, safe='')}")
    if answer.status != 200:
        raise AdminFault(f"{wanted}: {answer.fault}{_elsewhere(wanted)}")
    if as_json:
        click.echo(answer.body)
        return
    console = Console(highlight=False)
    explanation = msgspec.json.decode(answer.body, type=Explanation)
    print_explanation(explanation, console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH))


def _elsewhere(wanted: str) -> str:
    gateway, colon, _ = wanted.partition(":")
    return f" (the decision was made by gateway {gateway})" if colon else ""


def print_explanation(explanation: Explanation, console: Console) -> None:
    here = explanation.here
    _say(console, headline(here))
    _say(console, sentence(here))
    _print_side(here, console)
    for other in explanation.there:
        console.print()
        _print_other(other, console)


def _print_other(other: OtherSide, console: Console) -> None:
    _say(console, of_other_side(other))
    if other.request is not None:
        _print_side(other.request, console)


def _print_side(request: ExplainedRequest, console: Console) -> None:
    for placement in request.placements:
        console.print()
        _say(console, _caption(request, placement))
        _print_considered(placement, console)
    if request.shadow is not None:
        console.print()
        _say(console, f"Shadow overflow, after {in_ms(request.shadow.waited_ms)}, recorded and not done:")
        _print_considered(request.shadow, console)


def _print_considered(placement: ExplainedPlacement, console: Console) -> None:
    own = next(filter(None, (each.own_table(placement) for each in WORDS)), None)
    if own is not None:
        console.print(own)
        return
    console.print(_table(placement))
    if any(each.costs for each in placement.considered):
        console.print(_costs_table(placement))
    told = sorted({each.standing for each in placement.considered[1:] if each.costs} & _INELIGIBLE)
    if told:
        _say(console, f"Targets that were {' or '.join(told)} could not take the request; their scores only compare.")
    for table in filter(None, (each.further_table(placement) for each in WORDS)):
        console.print(table)


def _caption(request: ExplainedRequest, placement: ExplainedPlacement) -> str:
    leg = placement.leg or 1
    name = decision_id(GatewayId(request.gateway), RequestId(request.request_id), placement.attempt, leg)
    became = placement.result or "still running"
    refusal = f", {placement.refusal}" if placement.refusal else ""
    detail = f": {placement.detail}" if placement.detail else ""
    waited = in_ms(placement.waited_ms)
    further = "".join(each.caption(placement) for each in WORDS)
    placed = f"{placement.reason}, placed after {waited}{further}"
    return f"Decision {name}: {placed}. It ended as {became}{refusal}{detail}."


def _table(placement: ExplainedPlacement) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in ("", "Target", "Region", "State", "Cached blocks", "Load", "Round trip"):
        table.add_column(header, justify="right" if header in ("Load", "Round trip") else "left", overflow="fold")
    for index, candidate in enumerate(placement.considered):
        table.add_row(*map(plain, _row(candidate, placement, is_taken=index == 0)))
    return table


def _row(candidate: ExplainedCandidate, placement: ExplainedPlacement, *, is_taken: bool) -> Iterator[str]:
    yield "→" if is_taken else ""
    yield f"{candidate.kind} {candidate.id}"
    yield candidate.region or "unknown"
    yield candidate.standing
    yield share(candidate.matched_blocks, placement.prompt_blocks)
    yield str(candidate.load)
    yield in_ms(candidate.rtt_ms) if candidate.kind == TargetKind.PEER else ""


def _costs_table(placement: ExplainedPlacement) -> Table:
    """Table of the targets' scores, in the order of the table above it; a score is the sum of its parts, in weighted
    milliseconds, which are no waiting times."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("Weighted ms (the lowest wins)", overflow="fold")
    for header in ("Prefill", "Interference", "Queueing", "Network", "Score"):
        table.add_column(header, justify="right", overflow="fold")
    for index, candidate in enumerate(placement.considered):
        costs = candidate.costs
        if not costs:
            continue
        parts = (costs.reading, costs.crowding, costs.waiting, costs.distance, costs.score)
        name = f"{candidate.kind} {candidate.id}"
        table.add_row(*map(plain, ("→" if index == 0 else "", name, *map(rounded, parts))))
    return table


def _say(console: Console, text: str) -> None:
    console.print(plain(text), soft_wrap=True)
