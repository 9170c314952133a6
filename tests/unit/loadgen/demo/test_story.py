"""A demo with any failure says so, in its summary and in its problems; one without results still has an end."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from gateway.core.vocabulary import RegionName
from loadgen.demo.report import RunResult
from loadgen.demo.scenario import ROUND_TRIPS_FILE, DemoScenario
from loadgen.demo.story import ALONE_RUN, MESH_RUN, DemoStory, print_intro, print_story, story_document
from loadgen.report import MachineUse, RequestReport
from loadgen.round_trips import read_round_trips
from loadgen.vocabulary import RequestEnd

SCENARIO = DemoScenario()
US, EU, AP = (RegionName(name) for name in ("us-east-1", "eu-west-1", "ap-northeast-1"))


def record(region: RegionName, served_by: RegionName) -> RequestReport:
    return RequestReport(
        region,
        RequestEnd.COMPLETED,
        sent_ns=0,
        ended_ns=2_000_000_000,
        first_token_ns=1_000_000_000,
        served_by=served_by,
        output_tokens=10,
        tokens_in_time=10,
    )


HOME = (record(US, US), record(EU, EU), record(AP, AP))
MOVED = (*HOME, record(US, EU))


def run(name: str, *records: RequestReport) -> RunResult:
    return RunResult(name, (US, EU, AP), 10.0, records, {}, MachineUse(0.3, 0.5, 0.2))


def told(story: DemoStory) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_story(console, story)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_good_demo_has_no_problems_and_tells_everything() -> None:
    story = DemoStory(SCENARIO, [run(MESH_RUN, *MOVED), run(ALONE_RUN, *HOME)])
    assert story.problems() == []
    text = told(story)
    assert "With the mesh, p90 TTFT is" in text
    assert "Forwarded requests: us-east-1 sent 1 to eu-west-1; eu-west-1 and ap-northeast-1 sent none." in text
    assert "CPU of the whole machine in use: mesh 30% (peak 50%, 20% by the demo itself);" in text


def test_failures_are_problems() -> None:
    failed = replace(HOME[0], end=RequestEnd.FAILED, detail="HTTP 500: broken")
    story = DemoStory(SCENARIO, [run(MESH_RUN, *MOVED, failed), run(ALONE_RUN, *HOME)])
    assert story.problems() == ["mesh: 1 × HTTP 500: broken"]
    assert "HTTP 500: broken" in told(story)


def test_a_mesh_that_forwards_nothing_is_a_problem_unless_it_was_stopped() -> None:
    result = run(MESH_RUN, *HOME)
    assert DemoStory(SCENARIO, [result]).problems() == ["mesh: nothing was forwarded"]
    assert DemoStory(SCENARIO, [replace(result, is_partial=True)]).problems() == []


def test_forwarding_while_it_is_off_is_a_problem() -> None:
    assert DemoStory(SCENARIO, [run(ALONE_RUN, *MOVED)]).problems() == [
        "alone: 1 requests were forwarded with forwarding off"
    ]


def test_a_request_that_left_the_eu_is_a_problem() -> None:
    story = DemoStory(SCENARIO, [run(MESH_RUN, *MOVED, record(EU, US))])
    assert story.problems() == ["mesh: against the residency policy, 1 from eu-west-1 in us-east-1"]


def test_a_demo_that_never_ran_tells_why() -> None:
    story = DemoStory(SCENARIO, failure="the engines were not ready")
    assert story.problems() == ["the engines were not ready"]
    assert "the engines were not ready" in told(story)


def test_an_interrupted_demo_tells_what_it_has() -> None:
    story = DemoStory(SCENARIO, [replace(run(MESH_RUN, *MOVED), is_partial=True)], is_interrupted=True)
    text = told(story)
    assert "TTFT p90" in text
    assert "stopped early" in text


def test_the_document_is_json_and_holds_both_runs() -> None:
    story = DemoStory(SCENARIO, [run(MESH_RUN, *MOVED), run(ALONE_RUN, *HOME)])
    document = json.loads(json.dumps(story_document(story)))
    assert [each["name"] for each in document["runs"]] == [MESH_RUN, ALONE_RUN]
    assert document["problems"] == []
    assert document["scenario"]["regions"][0] == {
        "region": US,
        "jurisdiction": "US",
        "clients": SCENARIO.regions[0].clients,
        "engines": 4,
    }


def test_the_intro_names_regions_distances_and_who_is_closed() -> None:
    console = Console(file=io.StringIO(), width=400)
    print_intro(console, SCENARIO, read_round_trips(ROUND_TRIPS_FILE))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "us-east-1 – eu-west-1 70 ms" in text
    assert "what arrives in eu-west-1 stays there" in text
    assert "what arrives in us-east-1" not in text
