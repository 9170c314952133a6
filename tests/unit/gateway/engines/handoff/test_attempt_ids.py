from __future__ import annotations

import pytest

from gateway.engines.handoff.attempt_ids import AttemptIds, attempt_ids, leg_headers
from gateway.request.legs import NONCE_BYTES

NONCE = bytes(range(NONCE_BYTES))


def test_both_legs_of_an_attempt_meet_and_no_other_attempt_does() -> None:
    met = attempt_ids(NONCE, 1)
    assert met == attempt_ids(NONCE, 1)
    for other in (attempt_ids(NONCE, 2), attempt_ids(bytes(NONCE_BYTES), 1)):
        assert met.request_id != other.request_id
        assert met.transfer_id != other.transfer_id
        assert met.room != other.room


def test_none_of_its_words_tells_another() -> None:
    met = attempt_ids(NONCE, 1)
    assert met.request_id not in met.transfer_id
    assert f"{met.room:x}" not in met.request_id + met.transfer_id


def test_an_id_needs_no_escape_and_a_room_is_one_of_sglangs() -> None:
    for attempt in range(1, 200):
        met = attempt_ids(NONCE, attempt)
        assert int(met.request_id, 16) >= 0
        assert len(met.request_id) == 32
        assert 0 <= met.room < 1 << 63


def test_chance_is_asked_for() -> None:
    with pytest.raises(AssertionError, match="16 bytes"):
        attempt_ids(b"", 1)


@pytest.mark.parametrize("room", [0, 1, 2, 3, 12345, (1 << 63) - 1])
def test_a_room_leads_to_its_rank(room: int) -> None:
    for ranks in (1, 3, 4):
        for rank in range(ranks):
            led = AttemptIds("", "", room).in_room_of_rank(ranks, rank)
            assert led % ranks == rank
            assert 0 <= led < 1 << 63
            assert abs(led - room) < 2 * ranks


def test_the_clients_id_goes_to_no_engine() -> None:
    met = attempt_ids(NONCE, 1)
    headers = (("X-Request-Id", "theirs"), ("traceparent", "00-1"), ("x-request-id", "again"))
    assert leg_headers(headers, met) == (("traceparent", "00-1"), ("x-request-id", met.request_id))
