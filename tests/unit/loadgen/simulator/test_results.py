"""The arithmetic of the figures: the warm-up is left out, failures are not, and each share has the stated
denominator.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.core.vocabulary import RegionName
from loadgen.figures import Figures, distribution
from loadgen.report import PrefixTokens, RequestReport
from loadgen.simulator.checkers import CheckCounts
from loadgen.simulator.results import document_of, figures_of
from loadgen.simulator.world import RegionSample, Story
from loadgen.vocabulary import RequestEnd
from tests.support.scenarios import small_scenario

US, EU = RegionName("us"), RegionName("eu")
SECOND = 1_000_000_000
SCENARIO = small_scenario(
    warm_up="2s", regions={"us": {"jurisdiction": "US", "replicas": 2}, "eu": {"jurisdiction": "EU", "replicas": 1}}
)
DONE = RequestReport(
    US,
    RequestEnd.COMPLETED,
    sent_ns=3 * SECOND,
    ended_ns=5 * SECOND,
    first_token_ns=4 * SECOND,
    served_by=US,
    output_tokens=11,
    prompt_tokens=100,
    cached_tokens=40,
)


def figures(*records: RequestReport, samples: dict[RegionName, list[RegionSample]] | None = None) -> Figures:
    tokens = {US: PrefixTokens(100, 40), EU: PrefixTokens(100, 20)}
    told = samples or {US: [], EU: []}
    return figures_of(
        SCENARIO, Story(SCENARIO.runs[0], records, CheckCounts(), {}, told, tokens, "digest", 7, 12 * SECOND)
    )


def test_percentiles_are_values_that_were_measured() -> None:
    found = distribution(number * 1_000_000 for number in range(1, 101))
    assert found == {"p10": 10.0, "p25": 25.0, "p50": 50.0, "p75": 75.0, "p90": 90.0, "p99": 99.0, "mean": 50.5}
    assert distribution([]) is None


def test_what_was_asked_during_the_warm_up_is_left_out() -> None:
    total = figures(DONE, replace(DONE, sent_ns=SECOND))["total"]
    assert total["requests"] == 1
    assert total["ttft_ms"]["p50"] == 1000.0


def test_tokens_count_when_they_come() -> None:
    """An answer from 1 s to 11 s has eight tenths of its tokens between 2 s and 10 s."""
    slow = replace(DONE, sent_ns=0, first_token_ns=SECOND, ended_ns=11 * SECOND, output_tokens=101)
    assert figures(slow)["total"]["tokens_per_s"] == 10.0


def test_ends_are_told_apart() -> None:
    failed = replace(DONE, end=RequestEnd.FAILED, output_tokens=0, detail="queue_full", first_token_ns=None)
    unfinished = replace(DONE, end=RequestEnd.UNFINISHED, output_tokens=0)
    total = figures(DONE, failed, failed, unfinished)["total"]
    assert (total["requests"], total["completed"], total["failed"], total["unfinished"]) == (4, 1, 2, 1)
    assert total["failures"] == {"queue_full": 2}


def test_shares_and_flows() -> None:
    found = figures(DONE, replace(DONE, served_by=EU, cached_tokens=0))
    assert found["total"]["forwarded_share"] == 0.5
    assert found["total"]["cached_share"] == 0.2
    assert found["total"]["prefix_hit_rate"] == 0.3
    assert found["total"]["prefilled_tokens_per_request"] == 70.0
    assert [flow["requests"] for flow in found["flows"]] == [1, 1]
    assert found["total"]["tpot_ms"]["p50"] == 100.0


def test_spread_compares_the_busiest_engine_with_the_mean() -> None:
    samples = {US: [RegionSample(3 * SECOND, 2, (6, 2))], EU: [RegionSample(3 * SECOND, 1, (1,))]}
    total = figures(samples=samples)["total"]
    assert (total["outstanding_mean"], total["outstanding_max_to_mean"], total["queue_max"]) == (3.0, 2.0, 3)


def test_spread_between_engines_is_that_of_every_moment_together() -> None:
    """Moments of (0, 2, 10) and (1, 4, 3): 10 + 4 over 0 + 1, and 90th less 10th ranks of 10 and 3."""
    samples = {
        US: [RegionSample(3 * SECOND, 0, (0, 2)), RegionSample(4 * SECOND, 0, (1, 4))],
        EU: [RegionSample(3 * SECOND, 0, (10,)), RegionSample(4 * SECOND, 0, (3,))],
    }
    found = figures(samples=samples)
    assert (found["total"]["outstanding_max_to_min"], found["total"]["outstanding_p90_minus_p10"]) == (14.0, 6.5)
    assert found["series"]["us"]["outstanding_p90_minus_p10"] == [2, 3]
    idle = figures(samples={US: [RegionSample(3 * SECOND, 0, (0, 2))], EU: [RegionSample(3 * SECOND, 0, (0,))]})
    assert idle["total"]["outstanding_max_to_min"] is None


def test_what_was_open_at_once_counts_overlaps_under_load_only() -> None:
    """Requests: 3 to 5 s twice, 5 to 6 s (begins as the others end), and four each in the warm-up and after the
    load.
    """
    spans = [(3, 5), (3, 5), (5, 6), *[(0, 1)] * 4, *[(11, 12)] * 4]
    records = [replace(DONE, sent_ns=start * SECOND, ended_ns=end * SECOND) for start, end in spans]
    assert figures(*records)["total"]["in_flight_max"] == 2
    across = replace(DONE, sent_ns=0, ended_ns=4 * SECOND)
    assert figures(*records, across)["total"]["in_flight_max"] == 3


def test_replicas_needed_hold_what_was_open_at_the_busiest_moment() -> None:
    """Slots for 2: 3 open from us at 3 s, and 2 from eu at 6 s, are 2 engines together and 2 + 1 apart."""
    scenario = SCENARIO.model_copy(update={"slots": 2})
    later = replace(DONE, client_region=EU, sent_ns=6 * SECOND, ended_ns=7 * SECOND, first_token_ns=6 * SECOND)
    records = (DONE, DONE, DONE, later, later)
    tokens = {US: PrefixTokens(0, 0), EU: PrefixTokens(0, 0)}
    story = Story(scenario.runs[0], records, CheckCounts(), {}, {US: [], EU: []}, tokens, "digest", 7, 12 * SECOND)
    assert figures_of(scenario, story)["total"]["replicas_needed"] == {"together": 2, "apart": 3}


def test_nothing_at_all_gives_no_figures_rather_than_zeros() -> None:
    total = figures()["total"]
    assert (total["ttft_ms"], total["forwarded_share"], total["outstanding_mean"]) == (None, None, None)


def test_a_documents_digest_is_that_of_its_only_run_or_of_all() -> None:
    run = figures(DONE)
    assert document_of(SCENARIO, [run])["digest"] == "digest"
    two = document_of(SCENARIO, [run, run | {"digest": "other"}])["digest"]
    assert two not in ("digest", "other")
    assert two != document_of(SCENARIO, [run, run])["digest"]
