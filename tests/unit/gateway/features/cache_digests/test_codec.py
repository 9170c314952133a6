from __future__ import annotations

import pytest

from gateway.core.features.cache_digests.events import DigestPart
from gateway.features.cache_digests.checks import SEND_RATE_MAX
from gateway.features.cache_digests.codec import add_digest, read_digest
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb


def test_a_part_arrives_as_it_was_sent() -> None:
    message = pb.SubscribeResponse()
    assert read_digest(message) is None
    part = DigestPart(True, 0, 7, b"abcdefgh" * 2, b"ijklmnop")
    add_digest(message, part)
    assert read_digest(pb.SubscribeResponse.FromString(message.SerializeToString())) == part


def test_an_empty_part_arrives_too() -> None:
    message = pb.SubscribeResponse()
    add_digest(message, DigestPart(False, 0, 0))
    assert read_digest(message) == DigestPart(False, 0, 0)


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"added": b"abc"}, "a part of a fingerprint"),
        ({"removed": b"abcde"}, "a part of a fingerprint"),
        ({"added": bytes(SEND_RATE_MAX), "removed": bytes(8)}, "so large"),
        ({"from_version": 2, "to_version": 1}, "goes backwards"),
    ],
)
def test_garbage_ends_the_call(told: dict[str, bytes | int], fault: str) -> None:
    message = pb.SubscribeResponse(cache_digest=pb.CacheDigest(**told))  # type: ignore[arg-type]
    with pytest.raises(WireError, match=fault):
        read_digest(message)
