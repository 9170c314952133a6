"""Statements of the page about the played cells."""

from __future__ import annotations

from loadgen.studies.numbers import Middle, middle_of
from loadgen.studies.resume.costs import ResumeCost
from loadgen.studies.resume.page import page_of
from loadgen.studies.resume.playing import ObservedStream, ResumeOutcome
from loadgen.studies.resume.real_engines import EngineFigures, Exactness, Killed

MACHINE = {"cpu": "a", "cores": 2, "memory_gib": 4, "python": "Python", "busy": "all of it"}
WHOLE = ObservedStream(is_whole=True, is_broken=False, went_on=False, longest_gap_s=0.02, first_token_s=0.01)
WENT_ON = ObservedStream(is_whole=True, is_broken=False, went_on=True, longest_gap_s=0.2, first_token_s=0.01)
NO_COSTS: tuple[dict[str, Middle], list[ResumeCost]] = ({}, [])
BROKEN = ObservedStream(is_whole=False, is_broken=True, went_on=False, longest_gap_s=0.02, first_token_s=0.01)


def test_no_broken_stream_is_left_out() -> None:
    before = ResumeOutcome("an engine", False, kills=3, seen=[WHOLE, BROKEN, BROKEN], held=2)
    after = ResumeOutcome(
        "an engine", True, kills=3, seen=[WHOLE, WENT_ON, WENT_ON], held=2, tokens_read_again=17.0, read_s=[0.1, 0.1]
    )
    page = page_of([before, after], NO_COSTS, EngineFigures(), MACHINE)
    assert "| an engine | off | 3 | 3 | 2 | 1 | 2 | 0 | – |" in page
    assert "| an engine | on | 3 | 3 | 2 | 3 | 0 | 2 | 17 |" in page
    assert "| an engine | 200 ms | 200 ms | 100 ms | 100 ms |" in page


def test_pauses_of_nobody() -> None:
    page = page_of([ResumeOutcome("a region", True, seen=[WHOLE, WHOLE])], NO_COSTS, EngineFigures(), MACHINE)
    assert "| a region | – | – |" in page


def test_what_real_engines_did_and_why_not() -> None:
    measured = EngineFigures(
        {"one": Exactness("llama.cpp", "/v1/completions", "text", breaks=12, equal=9, reread=2)},
        {"two": Killed("vLLM", 8, 3, 7, 1, 3, [0.1, 0.3], [0.2, 0.2])},
    )
    page = page_of([], NO_COSTS, measured, MACHINE)
    assert "| llama.cpp | `/v1/completions` | text | 12 | 9 | 75% | 2 | 1 |" in page
    assert "| vLLM | 8 | 3 | 7 | 1 | 3 | 200 ms | 298 ms | 200 ms | 200 ms |" in page


def test_what_a_chunk_costs() -> None:
    us, ratio, more = middle_of([33.0, 34.0, 36.0]), middle_of([1.004, 1.01, 1.02]), middle_of([0.3, 0.33, 0.4])
    assert us is not None
    assert ratio is not None
    assert more is not None
    page = page_of([], ({"text": more}, [ResumeCost("off", us, ratio)]), EngineFigures(), MACHINE)
    assert "| text | 0.33 | 0.30–0.40 | 1.0% |" in page
    assert "| off | 34.00 | 33.00–36.00 | 1.010 | 1.004–1.020 |" in page
