from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gateway.core.features.disaggregated.books import Entry, Group, Worker, dispatch, end, progress
from gateway.core.features.disaggregated.config import BalanceConfig
from gateway.core.features.disaggregated.predictor import Facts, Numbers, Predictor
from gateway.core.features.disaggregated.projection import Projection
from gateway.core.vocabulary import ReplicaId, RequestId

H = 6
CONFIG = BalanceConfig(horizon_steps=H, refresh_tokens=4)


class Told(Predictor):
    """Predictor that answers as the test sets, and records the requests and ages that it was asked about."""

    def __init__(self, **told: tuple[float, float]) -> None:
        self.told = told
        self.asked: list[tuple[str, int]] = []
        self.is_there = True

    def is_ready(self, now_ns: int) -> bool:
        return self.is_there

    def estimate(self, ages: npt.NDArray[np.int64], facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
        self.asked += [(each.request_id, age) for each, age in zip(facts, ages.tolist(), strict=True)]
        told = [self.told[each.request_id] for each in facts]
        return np.array([share for share, _ in told]), np.array([mean for _, mean in told])


class Desk:
    """Two workers and the projection of their loads."""

    def __init__(self, predictor: Told, config: BalanceConfig = CONFIG) -> None:
        group = Group("dp")
        self.workers = [Worker(ReplicaId(f"w{number}"), number, group) for number in range(2)]
        self.predictor = predictor
        self.projection = Projection(config, predictor)
        self.entries: dict[str, Entry] = {}

    def send(self, key: str, tokens: int, place: int = 0, output_tokens: int = 0) -> None:
        facts = Facts(RequestId(key), tokens, output_tokens=output_tokens)
        entry = self.entries[key] = Entry(facts, len(self.entries), 0, 1)
        dispatch(entry, self.workers[place])
        self.projection.sent(entry, self.workers[place])

    def grow(self, key: str, generated: int) -> None:
        progress(self.entries[key], generated)
        self.projection.progressed(self.entries[key])

    def end(self, key: str) -> None:
        self.projection.over(self.entries[key])
        end(self.entries[key])

    def loads(self) -> list[list[float]]:
        loads = self.projection.loads(self.workers, 0)
        assert loads is not None
        return [[float(load) for load in row] for row in loads]


def test_each_grows_by_a_token_a_step_and_is_gone_once_it_has_ended() -> None:
    desk = Desk(Told(ends=(1.0, 3.0), stays=(0.0, 0.0), other=(0.0, 0.0)))
    desk.send("ends", 100)
    desk.send("stays", 10)
    desk.send("other", 7, place=1)
    ends = [100, 101, 102, 0, 0, 0, 0]
    assert desk.loads() == [[ends[h] + 10 + h for h in range(H + 1)], [7 + h for h in range(H + 1)]]


def test_a_prediction_is_both_stages_and_counts_down_between_refreshes() -> None:
    desk = Desk(Told(q=(0.75, 2.0)))
    desk.send("q", 50)
    # 0.75 · 2 + 0.25 · 6 = 3
    assert desk.loads()[0] == [50, 51, 52, 0, 0, 0, 0]
    desk.grow("q", 1)
    assert desk.loads()[0] == [51, 52, 0, 0, 0, 0, 0]
    assert desk.predictor.asked == [("q", 0)]


def test_a_part_of_a_step_is_a_step() -> None:
    desk = Desk(Told(q=(1.0, 2.5)))
    desk.send("q", 50)
    assert desk.loads()[0] == [50, 51, 52, 0, 0, 0, 0]


def test_it_is_made_anew_after_so_many_tokens_and_at_the_floor_at_once() -> None:
    desk = Desk(Told(long=(0.9, 6.0), short=(1.0, 2.0)))
    desk.send("long", 50)
    desk.send("short", 50)
    for generated in range(6):
        for key in ("long", "short"):
            desk.grow(key, generated)
        desk.loads()
    assert [age for key, age in desk.predictor.asked if key == "long"] == [0, 4]
    assert [age for key, age in desk.predictor.asked if key == "short"] == [0, 2, 4]


def test_while_it_is_there_it_counts_whatever_was_predicted() -> None:
    desk = Desk(Told(q=(1.0, 0.1)))
    desk.send("q", 50)
    assert desk.loads()[0] == [50, 0, 0, 0, 0, 0, 0]


def test_whom_the_predictor_is_not_sure_of_stays_and_is_not_counted_down() -> None:
    desk = Desk(Told(q=(0.49, 1.0)))
    desk.send("q", 50)
    desk.grow("q", 3)
    assert desk.loads()[0] == [53 + h for h in range(H + 1)]
    desk.grow("q", 6)
    assert desk.loads()[0] == [56 + h for h in range(H + 1)]


def test_unless_the_papers_way_is_asked_for() -> None:
    config = BalanceConfig(horizon_steps=H, refresh_tokens=4, decrements_stayers=True)
    desk = Desk(Told(q=(0.0, 0.0)), config)
    desk.send("q", 50)
    desk.loads()
    desk.grow("q", 3)
    assert desk.loads()[0] == [53, 54, 55, 0, 0, 0, 0]


def test_what_was_inherited_stays_as_it_is() -> None:
    desk = Desk(Told())
    desk.workers[1].inherited_tokens = 30
    assert desk.loads() == [[0] * (H + 1), [30] * (H + 1)]


def test_rows_are_used_again() -> None:
    keys = [f"q{number}" for number in range(200)]
    desk = Desk(Told(**dict.fromkeys(keys, (0.0, 0.0))))
    for key in keys:
        desk.send(key, 10, place=len(key) % 2)
        desk.loads()
        desk.end(key)
    assert desk.loads() == [[0] * (H + 1)] * 2
    for key in keys:
        desk.send(key, 10)
    assert desk.loads()[0] == [2000 + 200 * h for h in range(H + 1)]
    for key in keys:
        desk.end(key)
    assert desk.loads()[0] == [0] * (H + 1)


@pytest.mark.parametrize(
    "nonsense", [(float("nan"), 1.0), (0.9, float("nan")), (-0.1, 1.0), (1.5, 1.0), (0.9, float("inf"))]
)
def test_nonsense_is_no_projection_and_is_asked_for_again(nonsense: tuple[float, float]) -> None:
    desk = Desk(Told(good=(1.0, 2.0), bad=nonsense))
    desk.send("good", 10)
    desk.send("bad", 10)
    assert desk.projection.loads(desk.workers, 0) is None
    desk.predictor.told["bad"] = (1.0, 3.0)
    assert desk.loads()[0] == [20, 22, 12, 0, 0, 0, 0]
    assert desk.predictor.asked == [("good", 0), ("bad", 0), ("bad", 0)]


def test_too_few_answers_are_no_projection() -> None:
    class Short(Told):
        def estimate(self, ages: npt.NDArray[np.int64], facts: list[Facts], horizon: int) -> tuple[Numbers, Numbers]:
            return np.zeros(0), np.zeros(0)

    desk = Desk(Short())
    desk.send("q", 10)
    assert desk.projection.loads(desk.workers, 0) is None


def test_a_predictor_that_is_not_ready_is_asked_nothing() -> None:
    desk = Desk(Told(q=(1.0, 2.0)))
    desk.send("q", 10)
    desk.predictor.is_there = False
    assert desk.projection.loads(desk.workers, 0) is None
    assert desk.predictor.asked == []


def test_a_client_s_own_estimate_replaces_the_predictor_s_until_the_answer_exceeds_it() -> None:
    desk = Desk(Told(short=(0.0, 0.0), long=(1.0, 1.0), plain=(0.0, 0.0)))
    desk.send("short", 50, output_tokens=2)
    desk.send("long", 70, place=1, output_tokens=100)
    assert desk.loads() == [[50, 51, 0, 0, 0, 0, 0], [70 + h for h in range(H + 1)]]
    desk.grow("short", 2)
    assert desk.loads()[0] == [52 + h for h in range(H + 1)], "it has gone on beyond what its client expected"


def test_a_client_s_estimate_counts_where_the_predictor_cannot_tell() -> None:
    desk = Desk(Told(hinted=(np.nan, np.nan)))
    desk.send("hinted", 50, output_tokens=1)
    assert desk.loads()[0] == [50, 0, 0, 0, 0, 0, 0]
