"""`nightside explain`: why a request ran where it did, in words and tables. All of it is taken from the gateways'
records; nothing is worked out anew, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from urllib.parse import quote

import click
import msgspec
from msgspec import UNSET
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.core.vocabulary import GatewayId, LegResult, PlacementReason, PoolStep, RequestId, Standing, TargetKind
from gateway.ground.admin_client import Admin, AdminFault, admin_options
from gateway.records.decisions import (
    REFUSED,
    ExplainedCandidate,
    ExplainedCosts,
    ExplainedPlacement,
    ExplainedPool,
    ExplainedRequest,
    Explanation,
    OtherSide,
    decision_id,
)

PLAIN_WIDTH = 110
"""Columns when the output is no terminal."""

_COMPARED = frozenset(
    {
        PlacementReason.LOCAL_PREFIX,
        PlacementReason.LOCAL_EXPLORE,
        PlacementReason.SIBLING_PREFIX,
        PlacementReason.SIBLING_OVERFLOW,
        PlacementReason.REMOTE_PREFIX,
        PlacementReason.REMOTE_NEAREST,
    }
)
"""Where costs were compared, these say only what the target knew of the prompt."""
_ANSWERED = frozenset({LegResult.COMPLETED, LegResult.CLIENT_ERROR})
_STANDINGS: dict[str, str] = {
    Standing.AVAILABLE: "could have taken it",
    Standing.NOT_ALLOWED: "{was} not allowed by policy",
    Standing.FAILED_BEFORE: "had failed this request before",
    Standing.UNHEALTHY: "{was} unhealthy",
    Standing.LOST: "{was} lost",
    Standing.STALE: "had not been heard of for too long",
    Standing.DISTRUSTED: "had just failed or turned away an attempt",
    Standing.NOT_ACCEPTING: "took nothing in",
    Standing.BREAKER: "{was} cut off after failures",
    Standing.RAMP: "{was} still ramping up",
    Standing.PENDING: "had pending requests",
    Standing.CREDIT: "had been given all that one probe allows",
    Standing.OUTSTANDING: "had as many requests as allowed",
    Standing.KV_FULL: "had a KV cache fuller than a prefill worker's may be",
    Standing.DECODE_FULL: "had no decode slot in its pool for what it would read",
    Standing.TOO_SHORT: "had no pool that takes so long a request",
    Standing.QUEUE: "had a queue that was too long",
    Standing.BUSY: "had no free replica",
}


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
    if other.request is None:
        _say(console, f"The other side is missing: of gateway {other.gateway}, {other.problem}.")
        return
    _say(console, f"At {_gateway(other.request)}: {sentence(other.request)}")
    _print_side(other.request, console)


def _print_side(request: ExplainedRequest, console: Console) -> None:
    for placement in request.placements:
        console.print()
        _say(console, _caption(request, placement))
        _print_considered(placement, console)
    if request.shadow is not None:
        console.print()
        _say(console, f"Shadow overflow, after {_in_ms(request.shadow.waited_ms)}, recorded and not done:")
        _print_considered(request.shadow, console)


def _print_considered(placement: ExplainedPlacement, console: Console) -> None:
    if placement.reason == PlacementReason.DECODE_POLICY:
        console.print(_decode_table(placement))
        return
    console.print(_table(placement))
    if any(each.costs for each in placement.considered):
        console.print(_costs_table(placement))
    if any(_is_priced(each.costs) for each in placement.considered if each.costs):
        console.print(_prices_table(placement))


def _caption(request: ExplainedRequest, placement: ExplainedPlacement) -> str:
    leg = placement.leg or 1
    name = decision_id(GatewayId(request.gateway), RequestId(request.request_id), placement.attempt, leg)
    became = placement.result or "still running"
    refusal = f", {placement.refusal}" if placement.refusal else ""
    detail = f": {placement.detail}" if placement.detail else ""
    waited = _in_ms(placement.waited_ms)
    goes_on = f", to go on with the answer (resume {placement.resume})" if placement.resume else ""
    placed = f"{placement.reason}, placed after {waited}{goes_on}"
    return f"Decision {name}: {placed}. It ended as {became}{refusal}{detail}."


def _table(placement: ExplainedPlacement) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in ("", "Target", "Region", "Standing", "Known of the prompt", "Load", "Round trip"):
        table.add_column(header, justify="right" if header in ("Load", "Round trip") else "left")
    for index, candidate in enumerate(placement.considered):
        table.add_row(*map(_plain, _row(candidate, placement, is_taken=index == 0)))
    return table


def _row(candidate: ExplainedCandidate, placement: ExplainedPlacement, *, is_taken: bool) -> Iterator[str]:
    yield "→" if is_taken else ""
    yield f"{candidate.kind} {candidate.id}"
    yield candidate.region or "unknown"
    yield candidate.standing
    yield _share(candidate.matched_blocks, placement.prompt_blocks)
    yield str(candidate.load)
    yield _in_ms(candidate.rtt_ms) if candidate.kind == TargetKind.PEER else ""


def _decode_table(placement: ExplainedPlacement) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in ("", "Decode worker", "Group", "Standing", "Free slots", "Tokens", "Below the fullest"):
        table.add_column(header, justify="left" if header in ("", "Decode worker", "Group", "Standing") else "right")
    for index, candidate in enumerate(placement.considered):
        load = candidate.decode
        numbers = (load.free_slots, load.load_tokens, load.margin_tokens) if load else ("", "", "")
        first = ("→" if index == 0 else "", candidate.id, load.group if load else "", candidate.standing)
        table.add_row(*map(_plain, (*first, *map(str, numbers))))
    return table


def _costs_table(placement: ExplainedPlacement) -> Table:
    """Of each target what it would have cost there, in the order of the table before; the parts add up."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("What it would have cost")
    for header in ("Reading", "Crowding", "Waiting", "Distance", "Total"):
        table.add_column(header, justify="right")
    for index, candidate in enumerate(placement.considered):
        costs = candidate.costs
        if not costs:
            continue
        parts = (costs.reading_ms, costs.crowding_ms, costs.waiting_ms, costs.distance_ms, costs.total_ms)
        name = f"{candidate.kind} {candidate.id}"
        table.add_row(*map(_plain, ("→" if index == 0 else "", name, *map(_in_ms, parts))))
    return table


def _prices_table(placement: ExplainedPlacement) -> Table:
    """In the same order."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("By the prices in force")
    for header in ("First token", "Adds to the bill", "Emits"):
        table.add_column(header, justify="right")
    for index, candidate in enumerate(placement.considered):
        if candidate.costs:
            name = f"{candidate.kind} {candidate.id}"
            table.add_row(*map(_plain, ("→" if index == 0 else "", name, *_priced(candidate.costs))))
    return table


def _is_priced(costs: ExplainedCosts) -> bool:
    return costs.first_token_ms is not UNSET or costs.carbon_mg is not UNSET


def _priced(costs: ExplainedCosts) -> tuple[str, str, str]:
    """When the first token was to come from there, what it would have added to the bill, and what it would emit."""
    first_token = "" if costs.first_token_ms is UNSET else _in_ms(costs.first_token_ms)
    adds = "unknown" if costs.money is UNSET else f"{costs.money:.6f} {costs.currency or ''}".strip()
    return first_token, adds, "unknown" if costs.carbon_mg is UNSET else f"{costs.carbon_mg:.2f} mg CO2"


# Words


def headline(request: ExplainedRequest) -> str:
    source = f"forwarded by gateway {request.origin}" if request.origin else "from a client"
    ended = f"ended as {request.outcome}" if request.outcome else "not over yet"
    detail = f" ({request.detail})" if request.outcome and request.detail else ""
    model = f" for {request.model}" if request.model else ""
    return f"Request {request.request_id}{model}, {source}, at {_gateway(request)}: {ended}{detail}."


def sentence(request: ExplainedRequest) -> str:
    """Where it ran and why, from the record of its last placement, after what was tried before."""
    if not request.outcome and request.detail:
        return " ".join(_waiting(request))
    if not request.placements:
        return " ".join(_unplaced(request))
    *before, last = request.placements
    words = [_attempt_before(each) for each in before]
    words.append(f"{_where(request, last)} because {because(last)}.")
    if last.pool:
        words.append(in_pool(last.pool))
    if request.shadow is not None:
        words.append(f"Had overflow been on, it would have gone to {_region(request.shadow)}.")
    return " ".join(words)


def in_pool(choice: ExplainedPool) -> str:
    """Which pool, and why that one."""
    answer = "as others come to" if choice.is_soft else "asked for"
    total = choice.prompt_tokens + choice.output_tokens
    parts = f"{choice.prompt_tokens} of prompt, {choice.output_tokens} {answer}"
    budget = f"It was taken to come to {total} tokens ({parts})"
    refused = f", after an engine that takes {choice.refused_tokens} had refused it" if choice.refused_tokens else ""
    meant = f"which pool {choice.preferred} is meant for"
    steps: dict[str, str] = {
        PoolStep.PREFERRED: f"which pool {choice.pool} is meant for",
        PoolStep.SPILLED: f"{meant}: that was full, and nobody waited for {choice.pool}",
        PoolStep.STOOD_IN: f"{meant}: nobody there answered, and {choice.pool} takes it",
        PoolStep.REMOTE: "and goes into the pool there that is meant for so many",
    }
    return f"{budget}{refused}, {steps.get(choice.step, f'which came to pool {choice.pool} as {choice.step}')}."


def because(placement: ExplainedPlacement) -> str:
    """Why this target."""
    target, region, distance = placement.target, _region(placement), _distance(placement)
    known = _share(placement.matched_blocks, placement.prompt_blocks)
    not_here = _why_not_here(placement)
    alone = placement.candidates == 1
    words: dict[str, str] = {
        PlacementReason.LOCAL_PREFIX: f"{target} knew the most of the prompt, {known}",
        PlacementReason.LOCAL_EXPLORE: f"{target} was the only one with room"
        if alone
        else f"{target} was the least loaded, and no replica knew enough of the prompt",
        PlacementReason.LOCAL_POLICY: f"the placement policy picked {target}",
        PlacementReason.SIBLING_PREFIX: f"the sibling gateway {target} knew more of the prompt than any here, {known}",
        PlacementReason.SIBLING_OVERFLOW: f"{not_here}; the sibling gateway {target} had room",
        PlacementReason.REMOTE_PREFIX: f"{not_here}; {region} knew {known} of the prompt ({distance} away)",
        PlacementReason.REMOTE_NEAREST: f"{not_here}; {region} was the only one with room ({distance} away)"
        if alone
        else f"{not_here}; {region} was nearest ({distance})",
        PlacementReason.REMOTE_POLICY: f"{not_here}; the placement policy picked {region}",
        PlacementReason.LOCAL_PRICE: f"{target} was {_best_price(placement)}",
        PlacementReason.SIBLING_PRICE: f"the sibling gateway {target} was {_best_price(placement)}",
        PlacementReason.REMOTE_PRICE: f"{region} ({distance} away) was {_best_price(placement)}",
        PlacementReason.DECODE_POLICY: f"the decode tier chose {target}{_as_loaded(placement)}",
        PlacementReason.STORED_RESPONSE: f"{target} keeps the response that it refers to",
    }
    if not alone and placement.considered and placement.considered[0].costs and placement.reason in _COMPARED:
        return _was_cheapest(placement, placement.considered[0].costs)
    return words.get(placement.reason, f"of {placement.reason}")


def _best_price(placement: ExplainedPlacement) -> str:
    """What spoke for the target that was taken, by money and time."""
    costs = placement.considered[0].costs if placement.considered else UNSET
    if not costs or costs.first_token_ms is UNSET:
        return "the cheapest of those in time"
    adds = "an unknown sum" if costs.money is UNSET else f"{costs.money:.6f} {costs.currency}"
    when = _in_ms(costs.first_token_ms)
    return f"the cheapest of those in time: it adds {adds} to the bill, first token estimated in {when}"


def _as_loaded(placement: ExplainedPlacement) -> str:
    decode = placement.considered[0].decode if placement.considered else None
    if not decode:
        return ""
    others = f", {decode.margin_tokens} below the fullest of group {decode.group}" if decode.margin_tokens else ""
    return f", which had {decode.free_slots} free slots and {decode.load_tokens} tokens in its cache{others}"


def _was_cheapest(placement: ExplainedPlacement, costs: ExplainedCosts) -> str:
    who = placement.target if placement.kind == TargetKind.REPLICA else f"gateway {placement.target}"
    where = "" if placement.kind == TargetKind.REPLICA else f" in {_region(placement)} ({_distance(placement)} away)"
    known = _share(placement.matched_blocks, placement.prompt_blocks)
    return f"{who}{where} was the cheapest at {_in_ms(costs.total_ms)}, and knew {known} of the prompt"


def _where(request: ExplainedRequest, placement: ExplainedPlacement) -> str:
    """From the answer, where this attempt gave one."""
    if request.ran_in and placement.result in _ANSWERED:
        return f"It ran in {request.ran_in} (replica {request.replica})"
    return f"It was sent to {_region(placement)} ({placement.kind} {placement.target})"


def _attempt_before(placement: ExplainedPlacement) -> str:
    result = placement.refusal or placement.result
    became = f"ended as {result}" if result else "still runs"
    detail = f": {placement.detail}" if placement.detail else ""
    leg = f", leg {placement.leg}," if placement.leg else ""
    return (
        f"Attempt {placement.attempt}{leg} went to {_region(placement)} ({placement.kind} {placement.target}) because "
        f"{because(placement)}; it {became}{detail}."
    )


def _waiting(request: ExplainedRequest) -> Iterator[str]:
    yield from map(_attempt_before, request.placements)
    yield f"It waits for {request.detail}."
    if request.shadow is not None:
        yield f"Had overflow been on, it would have gone to {_region(request.shadow)}."


def _unplaced(request: ExplainedRequest) -> Iterator[str]:
    if request.refusals and request.outcome in ("", REFUSED):
        last = request.refusals[-1]
        times = "" if len(request.refusals) == 1 else f" {len(request.refusals)} times, last"
        yield f"It was turned away{times} as {last.reason}: {last.detail}."
        return
    yield "It was not placed anywhere."
    if request.shadow is not None:
        yield f"Had overflow been on, it would have gone to {_region(request.shadow)}, because"
        yield f"{because(request.shadow)}."


def _why_not_here(placement: ExplainedPlacement) -> str:
    """What stood against the region's own replicas, as far as they were recorded."""
    total = placement.replicas_here
    recorded = [each for each in placement.considered if each.kind == TargetKind.REPLICA]
    if total == 0:
        return "no replica here serves the model"
    if len(recorded) < total:
        some = f"; of those recorded, {_standings(recorded)}" if recorded else ""
        return f"none of the {total} replicas here was free{some}"
    standings = {each.standing for each in recorded}
    if len(standings) > 1:
        return _standings(recorded)
    all_of_them = {1: "the one replica here", 2: "both replicas here"}.get(total, f"all {total} replicas here")
    return f"{all_of_them} {_in_words(standings.pop(), count=total)}"


def _standings(candidates: Iterable[ExplainedCandidate]) -> str:
    """Such as: 2 replicas had pending requests and 1 replica was unhealthy."""
    parts = []
    for standing, group in groupby(sorted(each.standing for each in candidates)):
        count = len(list(group))
        parts.append(f"{count} {'replica' if count == 1 else 'replicas'} {_in_words(standing, count=count)}")
    return " and ".join(parts)


def _in_words(standing: str, *, count: int) -> str:
    return _STANDINGS.get(standing, f"{{was}} {standing}").format(was="was" if count == 1 else "were")


def _distance(placement: ExplainedPlacement) -> str:
    return _in_ms(placement.considered[0].rtt_ms) if placement.considered else "unrecorded"


def _gateway(request: ExplainedRequest) -> str:
    return f"{request.gateway} in {request.region} ({request.jurisdiction})"


def _region(placement: ExplainedPlacement) -> str:
    return placement.region or "a region no longer known"


def _share(matched: int, blocks: int) -> str:
    return f"{matched} of {blocks} blocks" if blocks else "no whole block"


def _in_ms(duration_ms: float) -> str:
    return f"{duration_ms:.0f} ms" if duration_ms >= 10 else f"{duration_ms:.1f} ms"


def _say(console: Console, text: str) -> None:
    console.print(_plain(text), soft_wrap=True)


def _plain(text: str) -> Text:
    """Details come from other machines: nothing in them may steer the terminal."""
    return Text("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text))
