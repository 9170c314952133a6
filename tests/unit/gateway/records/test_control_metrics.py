from __future__ import annotations

from dataclasses import dataclass

from gateway.core.vocabulary import ControlVersion
from gateway.records.control_metrics import ControlLevels


@dataclass
class FakeControl:
    is_wanted: bool = True
    is_attached: bool = True
    version: ControlVersion = ControlVersion(2, 7)  # noqa: RUF009 - nobody changes it
    snapshot_age_s: float | None = 5.0
    is_kept: bool = True
    taken: int = 3
    rejected: int = 1
    left_out: int = 2
    away: int = 4


def samples(control: FakeControl | None) -> dict[str, float]:
    return {
        f"{each.name}{''.join(each.labels.values())}".removeprefix("nightside_control_"): each.value
        for family in ControlLevels(control).collect()
        for each in family.samples
    }


def test_what_is_to_be_seen_is_shown() -> None:
    assert samples(FakeControl()) == {
        "attached": 1,
        "term": 2,
        "version": 7,
        "snapshot_age_seconds": 5,
        "snapshot_kept": 1,
        "replicas_left_out": 2,
        "replicas_away": 4,
        "snapshots_totaltaken": 3,
        "snapshots_totalrejected": 1,
    }


def test_without_a_snapshot_it_has_no_age_and_without_controllers_there_is_nothing() -> None:
    assert "snapshot_age_seconds" not in samples(FakeControl(snapshot_age_s=None))
    assert samples(FakeControl(is_wanted=False)) == samples(None) == {}
