from __future__ import annotations

from pathlib import Path

from gateway.core.features.disaggregated.predictors.estimator import UNKNOWN_PROMPT
from loadgen.studies.predictors.workloads import CAPPED, CAPPED_LONG, RECURRING, kept_aside, recorded
from tests.support.traces import published


def test_of_a_folder_those_are_found_that_are_there(tmp_path: Path) -> None:
    assert recorded(None) == []
    assert recorded(tmp_path) == []
    found = {workload.name: workload for workload in recorded(published(tmp_path))}
    assert list(found) == [CAPPED, CAPPED_LONG, RECURRING]
    assert len(found[CAPPED].read().ended) == 30
    assert all(each.prompt_key != UNKNOWN_PROMPT for each in found[RECURRING].read().ended)


def test_those_kept_aside_are_the_same_each_time_and_of_both_kinds() -> None:
    recurring, limited = (workload.read().ended for workload in kept_aside(2000))
    assert [recurring, limited] == [workload.read().ended for workload in kept_aside(2000)]
    keys = [each.prompt_key for each in recurring if each.prompt_key != UNKNOWN_PROMPT]
    assert len(keys) > 500 > len(set(keys))
    assert max(each.output_tokens for each in recurring) > 5 * max(each.output_tokens for each in limited)
    assert sum(each.output_tokens == 1024 for each in limited) > 100
