from __future__ import annotations

from gateway.core.features.disaggregated.predictors.arrays import PredictorKind
from loadgen.fit.sources import Request, history_of
from loadgen.studies.predictors.refresh import refresh_sweep, sweep_markdown
from loadgen.studies.predictors.workloads import PredictorWorkload


def always_as_long(requests: int) -> PredictorWorkload:
    """Workload of equal lengths, in which a request's end is known once it is within the horizon."""
    snapshot = history_of(
        Request(at_s=0.3 * number, prompt_key=0, prompt_tokens=100, output_tokens=200) for number in range(requests)
    )
    return PredictorWorkload("always as long", lambda: snapshot)


def test_who_is_known_to_stay_should_not_be_counted_down() -> None:
    rows = refresh_sweep([always_as_long(300)], PredictorKind.SURVIVAL, refreshes=(4, 40), steps=600)
    error = {(row["refresh_tokens"], row["decrements_stayers"]): row["error"] for row in rows}
    without = rows[0]["error_without"]
    assert error[4, False] < 0.2 * without
    assert error[4, False] < error[40, False] < error[40, True]
    assert error[4, True] < error[40, True]
    assert len(sweep_markdown(rows).splitlines()) == 4


def test_it_is_the_same_each_time() -> None:
    runs = [refresh_sweep([always_as_long(100)], PredictorKind.SURVIVAL, refreshes=(8,), steps=50) for _ in range(2)]
    assert runs[0] == runs[1]
