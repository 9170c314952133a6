from __future__ import annotations

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from gateway.core.vocabulary import LegResult
from gateway.features.resume.metrics import ResumeMetrics
from tests.support.core import desk
from tests.support.followed import Followed


class Resumed(Followed):
    def __init__(self, replicas: int = 2) -> None:
        super().__init__(desk(replicas=replicas))
        self.registry = CollectorRegistry()
        self.finished.hand_to(ResumeMetrics(self.registry).on_finished)

    def breaks(self, request_id: str, attempt: int = 1, *, continuable: bool = True) -> None:
        rest = replace(self.profiles[request_id], appends=True) if continuable else None
        self.end(request_id, LegResult.FAILED, attempt, remainder=rest, output_tokens=7)  # type: ignore[arg-type]

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"nightside_{name}", labels) or 0.0


def test_an_answer_that_goes_on_counts_its_break_its_resume_and_its_end() -> None:
    resumed = Resumed()
    resumed.ask("a")
    resumed.first_token("a")
    resumed.breaks("a")
    resumed.first_token("a", attempt=2)
    resumed.end("a", attempt=2)
    assert resumed.value("resumes_total", target="replica") == 0, "it is not finished"
    resumed.finish("a")
    assert resumed.value("answers_broken_total", target="replica", result="failed", continuable="yes") == 1
    assert resumed.value("resumes_total", target="replica") == 1
    assert resumed.value("resumed_tokens_total") == 7
    assert resumed.value("resumed_requests_total", outcome="completed") == 1


def test_another_try_with_the_same_rest_is_no_further_resume() -> None:
    resumed = Resumed(replicas=3)
    resumed.ask("a")
    resumed.first_token("a")
    resumed.breaks("a")
    resumed.end("a", LegResult.FAILED, 2)
    resumed.first_token("a", attempt=3)
    resumed.end("a", attempt=3)
    resumed.finish("a")
    assert resumed.value("resumes_total", target="replica") == 1
    assert resumed.value("answers_broken_total", target="replica", result="failed", continuable="yes") == 1


def test_a_failure_before_the_first_token_breaks_no_answer_and_a_lost_rest_cannot_go_on() -> None:
    resumed = Resumed()
    resumed.ask("a")
    resumed.end("a", LegResult.FAILED)
    resumed.first_token("a", attempt=2)
    resumed.breaks("a", 2, continuable=False)
    resumed.finish("a", is_answer_dropped=True)
    assert resumed.value("answers_broken_total", target="replica", result="failed", continuable="no") == 1
    assert resumed.value("answers_broken_total", target="replica", result="failed", continuable="yes") == 0
    assert resumed.value("resumed_requests_total", outcome="failed_midstream") == 0
    assert resumed.value("transcripts_dropped_total") == 1
