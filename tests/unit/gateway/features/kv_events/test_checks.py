from __future__ import annotations

import pytest

from gateway.core.config import CoreConfig
from gateway.core.features.kv_events.config import KvEventsConfig
from gateway.features.kv_events.checks import BLOCKS_MAX, MESSAGE_MAX, MESSAGE_MIN, RATE_MAX, kv_event_faults
from tests.support.core import SECOND


def faults(**settings: int) -> list[str]:
    return [each.key for each in kv_event_faults(CoreConfig(kv_events=KvEventsConfig(**settings)))]


def test_the_defaults_are_right() -> None:
    assert faults() == []


@pytest.mark.parametrize(
    ("key", "field", "wrong", "right"),
    [
        ("blocks_max", "blocks_max", BLOCKS_MAX + 1, BLOCKS_MAX),
        ("message_max", "message_max_bytes", MESSAGE_MIN - 1, MESSAGE_MIN),
        ("message_max", "message_max_bytes", MESSAGE_MAX + 1, MESSAGE_MAX),
        ("rate_max", "rate_max_bytes", RATE_MAX + 1, RATE_MAX),
        ("rate_max", "rate_max_bytes", 100_000, 110_000),
        ("pause", "pause_ns", SECOND - 1, SECOND),
    ],
)
def test_each_limit_has_a_range(key: str, field: str, wrong: int, right: int) -> None:
    assert faults(**{field: wrong}) == [f"kv_events.{key}"]
    assert faults(**{field: right}) == []
