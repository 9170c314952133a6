from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from rich.console import Console

from gateway.app.explain_cli import print_explanation
from gateway.app.wording import because, headline, sentence
from gateway.core.vocabulary import PlacementReason, PoolStep, Standing
from gateway.records.decisions import (
    ExplainedCandidate,
    ExplainedCosts,
    ExplainedFigure,
    ExplainedPlacement,
    ExplainedPool,
    ExplainedRefusal,
    ExplainedRequest,
    Explanation,
    OtherSide,
)


def peer(name: str = "eu-1", region: str = "eu-west-1", *, rtt_ms: float = 70.0) -> ExplainedCandidate:
    return ExplainedCandidate("peer", name, region, "available", 0, 0, rtt_ms)


def replica(name: str, standing: str = "pending") -> ExplainedCandidate:
    return ExplainedCandidate("replica", name, "us-east-1", standing, 0, 3, 0.0)


def placement(*considered: ExplainedCandidate, **changes: object) -> ExplainedPlacement:
    chosen, *others = considered
    values = {
        "attempt": 1,
        "kind": chosen.kind,
        "target": chosen.id,
        "region": chosen.region,
        "reason": "remote_nearest" if chosen.kind == "peer" else "local_explore",
        "matched_blocks": 3,
        "prompt_blocks": 4,
        "candidates": 2,
        "waited_ms": 12.0,
        "replicas_here": sum(each.kind == "replica" for each in considered),
        "considered": considered,
        "result": "completed",
        **changes,
    }
    assert len(others) + 1 == len(considered)
    return ExplainedPlacement(**values)  # type: ignore[arg-type]


def request(*placements: ExplainedPlacement, **changes: object) -> ExplainedRequest:
    values = {
        "gateway": "us-1",
        "region": "us-east-1",
        "jurisdiction": "US",
        "request_id": "r-1",
        "model": "llama",
        "origin": "",
        "age_ms": 5.0,
        "placements": placements,
        "outcome": "completed",
        **changes,
    }
    return ExplainedRequest(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("placed", "words"),
    [
        (
            placement(peer(), replica("a"), replica("b")),
            "both replicas here had pending requests; eu-west-1 was nearest (70 ms)",
        ),
        (
            placement(peer(rtt_ms=0.25), replica("a"), candidates=1),
            "the one replica here had pending requests; eu-west-1 was the only one with room (0.2 ms away)",
        ),
        (
            placement(peer(), replica("a"), replica("b"), replica("c", "unhealthy")),
            "2 replicas had pending requests and 1 replica was unhealthy; eu-west-1 was nearest (70 ms)",
        ),
        (
            placement(peer(), *(replica(name, "unhealthy") for name in "abc")),
            "all 3 replicas here were unhealthy; eu-west-1 was nearest (70 ms)",
        ),
        (
            placement(peer(), replica("a"), replicas_here=12),
            "none of the 12 replicas here was free; of those recorded, 1 replica had pending requests;"
            " eu-west-1 was nearest (70 ms)",
        ),
        (
            placement(peer(), replicas_here=2),
            "none of the 2 replicas here was free; eu-west-1 was nearest (70 ms)",
        ),
        (placement(peer()), "no replica here serves the model; eu-west-1 was nearest (70 ms)"),
        (
            placement(peer(), replica("a", "some new standing")),
            "the one replica here was some new standing; eu-west-1 was nearest (70 ms)",
        ),
        (
            placement(peer(), replica("a"), reason="remote_prefix"),
            "the one replica here had pending requests; eu-west-1 knew 3 of 4 blocks of the prompt (70 ms away)",
        ),
        (placement(replica("a"), reason="local_prefix"), "a knew the most of the prompt, 3 of 4 blocks"),
        (placement(replica("a")), "a was the least loaded, and no replica knew enough of the prompt"),
        (placement(replica("a"), candidates=1), "a was the only one with room"),
        (placement(replica("a"), reason="a_new_rule"), "of a_new_rule"),
    ],
)
def test_the_reason_is_told_from_the_record(placed: ExplainedPlacement, words: str) -> None:
    assert because(placed) == words


@pytest.mark.parametrize("reason", list(PlacementReason))
def test_every_reason_has_words(reason: PlacementReason) -> None:
    assert not because(placement(peer(), replica("a"), reason=reason)).startswith("of ")


@pytest.mark.parametrize("standing", list(Standing))
def test_every_standing_has_words(standing: Standing) -> None:
    told = because(placement(peer(), replica("a", standing)))
    assert "{" not in told
    assert f"was {standing.replace('_', ' ')};" not in told or standing in (Standing.UNHEALTHY, Standing.LOST)


def test_a_sentence_says_where_it_ran_and_what_was_tried_before() -> None:
    failed = placement(peer("ap-1", "ap-northeast-1"), result="refused", refusal="busy", detail="9 wait")
    ran = placement(peer(), attempt=2)
    told = sentence(request(failed, ran, ran_in="eu-west-1", replica="eu-a"))
    assert told == (
        "Attempt 1 went to ap-northeast-1 (peer ap-1) because no replica here serves the model; ap-northeast-1 was"
        " nearest (70 ms); it ended as busy: 9 wait. It ran in eu-west-1 (replica eu-a) because no replica here serves"
        " the model; eu-west-1 was nearest (70 ms)."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "It was taken to come to 300 tokens (200 of prompt, 100 asked for), which pool short is meant for.",
        ),
        (
            {"pool": "long", "step": PoolStep.SPILLED, "is_soft": True},
            "(200 of prompt, 100 as others come to), which pool short is meant for: that was full, and no request"
            " waited for long.",
        ),
        (
            {"pool": "long", "step": PoolStep.STOOD_IN},
            "which pool short is meant for: no engine there answered, and long takes it.",
        ),
        (
            {"pool": "", "step": PoolStep.REMOTE, "refused_tokens": 128},
            ", after an engine that takes 128 had refused it, and goes into the pool there that is meant for so many.",
        ),
        ({"pool": "long", "step": "of_a_newer_version"}, "which came to pool long as of_a_newer_version."),
    ],
)
def test_the_pool_is_told_with_what_that_rested_on(changes: dict[str, Any], words: str) -> None:
    choice = ExplainedPool(PoolStep.PREFERRED, "short", "short", 8192, 200, 100, False, 0)
    placed = placement(replica("a"), pool=replace(choice, **changes))
    assert words in sentence(request(placed))


def test_legs_of_one_attempt_are_told_apart() -> None:
    legs = (placement(replica("a"), leg=1, result=""), placement(replica("b"), leg=2, result=""))
    told = sentence(request(*legs, outcome=""))
    assert told.startswith("Attempt 1, leg 1, went to us-east-1 (replica a) because a was")
    assert "; it still runs. It was sent to us-east-1 (replica b)" in told
    told = printed(Explanation(request(*legs)))
    assert "Decision us-1:r-1.1: local_explore" in told
    assert "Decision us-1:r-1.1-2: local_explore" in told


def test_where_an_earlier_attempt_ran_is_not_taken_for_where_the_last_one_did() -> None:
    failed = placement(peer(), result="failed")
    told = sentence(request(failed, ran_in="eu-west-1", replica="eu-a", outcome="failed_midstream"))
    assert told.startswith("It was sent to eu-west-1 (peer eu-1) because ")


def test_what_was_not_placed_is_told_too() -> None:
    assert sentence(request(outcome="rejected_queue_full")) == "It was not placed anywhere."
    refusals = (ExplainedRefusal("busy", "9 wait"), ExplainedRefusal("draining", "going"))
    told = sentence(request(outcome="", origin="eu-1", refusals=refusals))
    assert told == "It was turned away 2 times, last as draining: going."
    waiting = request(outcome="", shadow=placement(peer(), replica("a"), attempt=0, result=""))
    assert sentence(waiting) == (
        "It was not placed anywhere. Had overflow been on, it would have gone to eu-west-1, because the one replica"
        " here had pending requests; eu-west-1 was nearest (70 ms)."
    )


def test_the_headline_names_both_ends() -> None:
    assert headline(request()) == (
        "Request r-1 for llama, from a client, at us-1 in us-east-1 (US): ended as completed."
    )
    told = headline(request(origin="eu-1", outcome="", detail="x"))
    assert told == "Request r-1 for llama, forwarded by gateway eu-1, at us-1 in us-east-1 (US): not over yet."


def printed(explanation: Explanation) -> str:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    print_explanation(explanation, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


HERE = replace(replica("us-a", "available"), costs=ExplainedCosts.of(400.0, 12.0, 0.25, 0.0))
THERE = replace(peer(), costs=ExplainedCosts.of(0.0, 5.5, 0.0, 21.0))


def test_the_score_of_each_target_is_shown_with_its_parts_and_as_no_time() -> None:
    unheard = peer("ap-1", "ap-northeast-1")
    told = printed(Explanation(request(placement(THERE, HERE, unheard, reason="remote_prefix"))))
    rows = [line.split() for line in told.splitlines()]
    assert ["→", "peer", "eu-1", "0.0", "5.5", "0.0", "21", "26"] in rows
    assert ["replica", "us-a", "400", "12", "0.2", "0.0", "412"] in rows
    assert [row for row in rows if row[:2] == ["peer", "ap-1"]] == [
        ["peer", "ap-1", "ap-northeast-1", "available", "0", "of", "4", "blocks", "0", "70", "ms"]
    ], "nothing is known of its costs"


def test_money_first_token_and_carbon_are_shown_where_prices_were_known() -> None:
    assert HERE.costs
    assert THERE.costs
    soon, free = ExplainedFigure(1200.0, "ms"), ExplainedFigure(0.0, "EUR")
    carbon = ExplainedFigure(2.5, "mg CO2")
    here = replace(HERE, costs=replace(HERE.costs, further={"first_token": soon, "money": free, "carbon": carbon}))
    there = replace(THERE, costs=replace(THERE.costs, further={"first_token": ExplainedFigure(480.0, "ms")}))
    decided = placement(here, there, reason="local_price")
    told = printed(Explanation(request(decided)))
    assert "Adds to the bill" in told
    rows = [line.split() for line in told.splitlines()]
    assert any(row[-7:] == ["1200", "ms", "0.000000", "EUR", "2.50", "mg", "CO2"] for row in rows)
    assert any(row[-4:] == ["480", "ms", "unknown", "unknown"] for row in rows)
    words = "us-a was the cheapest of those in time: it adds 0.000000 EUR to the bill, first token estimated in 1200 ms"
    assert because(decided) == words
    assert because(placement(there, reason="remote_price")).startswith(
        "eu-west-1 (70 ms away) was the cheapest of those"
    )


def test_costs_that_nobody_compared_have_no_table() -> None:
    assert "Score" not in printed(Explanation(request(placement(peer(), replica("us-a")))))


@pytest.mark.parametrize("reason", ["local_prefix", "local_explore", "sibling_prefix", "sibling_overflow"])
def test_where_costs_were_compared_the_lowest_score_was_taken(reason: str) -> None:
    told = because(placement(HERE, THERE, reason=reason))
    words = "us-a had the lowest score, 412 (prefill 400 + interference 12 + queueing 0.2)"
    assert told == f"{words}, and knew 3 of 4 blocks of the prompt"


@pytest.mark.parametrize("reason", ["remote_prefix", "remote_nearest"])
def test_a_gateway_with_the_lowest_score_is_told_with_its_region_and_how_far_away_it_is(reason: str) -> None:
    told = because(placement(THERE, HERE, reason=reason))
    words = "gateway eu-1 in eu-west-1 (70 ms away) had the lowest score, 26 (interference 5.5 + network 21)"
    assert told == f"{words}, and knew 3 of 4 blocks of the prompt"


def test_scores_of_targets_that_could_not_take_the_request_are_said_to_compare_only() -> None:
    def told(*standings: str, costs: ExplainedCosts | UnsetType = HERE.costs) -> str:
        others = [replace(replica(f"us-{each}", each), costs=costs) for each in standings]
        return printed(Explanation(request(placement(THERE, *others))))

    assert "were not_allowed or unhealthy could not take" in told("unhealthy", "pending", "not_allowed")
    assert "could not take" not in told("available", "pending", "busy")
    assert "could not take" not in told("unhealthy", costs=UNSET)


def test_a_score_of_nothing_has_no_parts() -> None:
    free = replace(HERE, costs=ExplainedCosts.of(0.0, 0.0, 0.0, 0.0))
    assert because(placement(free, THERE)).startswith("us-a had the lowest score, 0.0, and knew")


def test_whoever_alone_had_room_or_keeps_the_response_was_not_compared() -> None:
    assert because(placement(HERE, candidates=1)) == "us-a was the only one with room"
    assert because(placement(HERE, THERE, reason="stored_response")).startswith("us-a keeps the response")


def test_nothing_is_cut_off_on_a_narrow_terminal() -> None:
    long = replace(THERE, id="gateway-of-a-long-name-1", region="a-region-of-a-long-name-1")
    console = Console(file=io.StringIO(), width=60, highlight=False)
    print_explanation(Explanation(request(placement(long, HERE, reason="remote_prefix"))), console)
    assert isinstance(console.file, io.StringIO)
    assert "\N{HORIZONTAL ELLIPSIS}" not in console.file.getvalue()


def test_both_sides_have_tables_and_a_missing_one_a_word() -> None:
    here = request(placement(peer(), replica("us-a"), replica("us-b", "unhealthy")))
    there = request(placement(replica("eu-a", "available")), gateway="eu-1", origin="us-1")
    told = printed(Explanation(here, (OtherSide("eu-1", there), OtherSide("ap-1", None, "it is on fire"))))
    rows = [line.split() for line in told.splitlines()]
    assert ["→", "peer", "eu-1", "eu-west-1", "available", "0", "of", "4", "blocks", "0", "70", "ms"] in rows
    assert ["replica", "us-b", "us-east-1", "unhealthy", "0", "of", "4", "blocks", "3"] in rows
    assert ["→", "replica", "eu-a", "us-east-1", "available", "0", "of", "4", "blocks", "3"] in rows
    assert "Decision us-1:r-1.1: remote_nearest, placed after 12 ms. It ended as completed." in told
    assert "Decision eu-1:r-1.1: local_explore" in told
    assert "The other side is missing: of gateway ap-1, it is on fire." in told


def test_nothing_from_another_machine_steers_the_terminal() -> None:
    evil = replace(placement(peer(), replica("a")), detail="\x1b[2J[red]boo[/red]\r\n", result="failed")
    told = printed(Explanation(request(evil)))
    assert "\x1b" not in told
    assert "\r" not in told
    assert "[red]boo[/red]" in told


def test_a_request_that_waits_says_for_whom() -> None:
    waits = request(outcome="", detail="replica:r0 (unhealthy: refused), peer:eu-1 (lost)")
    assert headline(waits).endswith(": not over yet.")
    assert sentence(waits) == "It waits for replica:r0 (unhealthy: refused), peer:eu-1 (lost)."
    failed = placement(replica("a"), result="failed", detail="gone")
    again = replace(waits, placements=(failed,), shadow=placement(peer()))
    assert sentence(again).startswith("Attempt 1 went to us-east-1 (replica a)")
    assert sentence(again).endswith("peer:eu-1 (lost). Had overflow been on, it would have gone to eu-west-1.")


def test_a_request_that_never_ran_says_why() -> None:
    never = request(outcome="rejected_residency_processing", detail="`llama` is served only in eu-west-1")
    assert headline(never).endswith("rejected_residency_processing (`llama` is served only in eu-west-1).")
    assert sentence(never) == "It was not placed anywhere."
