from __future__ import annotations

import pytest

from gateway.core.config import CoreConfig
from gateway.core.features.cache_digests.config import CacheDigestsConfig
from gateway.core.kernel.config import ObservationConfig
from gateway.features.cache_digests.checks import FINGERPRINTS_MAX, SEND_RATE_MAX, SEND_RATE_MIN, cache_digest_faults
from tests.support.core import SECOND


def faults(**settings: int) -> list[str]:
    config = CoreConfig(cache_digests=CacheDigestsConfig(enabled=True, **settings))
    return [each.key for each in cache_digest_faults(config)]


def test_the_defaults_are_right() -> None:
    assert faults() == []


def test_a_long_keep_alive_is_no_fault_while_the_feature_is_off() -> None:
    slow = CoreConfig(observation=ObservationConfig(keep_alive_ns=5 * SECOND))
    assert list(cache_digest_faults(slow)) == []


@pytest.mark.parametrize(
    ("key", "field", "wrong", "right"),
    [
        ("send_rate_max", "send_rate_max_bytes", SEND_RATE_MIN - 1, SEND_RATE_MIN),
        ("send_rate_max", "send_rate_max_bytes", SEND_RATE_MAX + 1, SEND_RATE_MAX),
        ("fingerprints_max", "fingerprints_max", FINGERPRINTS_MAX + 1, FINGERPRINTS_MAX),
        ("age_max", "age_max_ns", 3 * SECOND - 1, 3 * SECOND),
        ("age_max", "age_max_ns", 3601 * SECOND, 3600 * SECOND),
    ],
)
def test_each_limit_has_a_range(key: str, field: str, wrong: int, right: int) -> None:
    assert faults(**{field: wrong}) == [f"cache_digests.{key}"]
    assert faults(**{field: right}) == []
