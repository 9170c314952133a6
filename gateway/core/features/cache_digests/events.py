"""Cache digests' own event, and the message that peers exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from gateway.core.kernel.events import FeatureEvent
from gateway.core.vocabulary import GatewayId


class DigestPart(Struct, frozen=True):
    """Changes of a gateway's digest from one version to another, as told to one peer. Fingerprints are packed, 8 bytes
    each."""

    is_first: bool
    """The digest starts anew with this part: the peer forgets everything that it was told before."""
    from_version: int
    to_version: int
    added: bytes = b""
    removed: bytes = b""


class DigestHeard(FeatureEvent, frozen=True):
    """A peer has told a part of its digest."""

    gateway_id: GatewayId
    part: DigestPart

    def with_hashes(self, permuted: Callable[[bytes], bytes], /) -> Self:
        part = self.part
        hidden = replace(part, added=permuted(part.added), removed=permuted(part.removed))
        return replace(self, part=hidden)
