"""Limits the memory that clients' request bodies hold, in total and per client. It counts; it never waits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from gateway.core.vocabulary import TenantName
from gateway.door.errors import BODIES_SHARE_EXCEEDED, GATEWAY_FULL, ClientFault, ErrorKind
from gateway.door.parse import Caller
from gateway.door.settings import HttpSettings
from gateway.request.callers import KeyId

_REMEMBERED_MAX = 4096
_NETWORK_LENGTH = len("2001:0db8:0000:0000")


class BodyOwner(NamedTuple):
    """A key, a tenant or an address, whose bodies are counted together."""

    kind: str
    name: str
    share: float
    """Share of the memory that other holders leave."""


def owners_of(caller: Caller, address: str | None, settings: HttpSettings) -> tuple[BodyOwner, ...]:
    """Holders whose shares a request's body counts against.

    Without a key the holder is the client's address, unless a proxy in front names tenants. This machine's own address
    is no holder: all clients of a local proxy come from it.
    """
    if caller.key is not None:
        return _holders_of_key(caller.key.key_id, caller.tenant, settings.key_share, settings.tenant_share)
    if settings.trust_tenant_header:
        return (BodyOwner("tenant", caller.tenant, settings.tenant_share),)
    if address is None or (network := _network_of(address)) is None:
        return ()
    return (BodyOwner("address", network, settings.key_share),)


@lru_cache(_REMEMBERED_MAX)
def _holders_of_key(key: KeyId, tenant: TenantName, key_share: float, tenant_share: float) -> tuple[BodyOwner, ...]:
    return BodyOwner("key", key, key_share), BodyOwner("tenant", tenant, tenant_share)


def _network_of(address: str) -> str | None:
    """Network that belongs to one client: an IPv4 address, or the first half of an IPv6 one; None for this machine."""
    if address.startswith("127."):
        return None
    if ":" not in address:
        return address
    try:
        known = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if known.is_loopback:
        return None
    return known.exploded[:_NETWORK_LENGTH]


class BodyMemory:
    """Remaining number of requests and of bytes of their bodies.

    A holder that takes its share of what others leave free leaves some to the next one, however many there are.
    """

    def __init__(self, requests_max: int, bytes_max: int, body_bytes_max: int) -> None:
        """No share is smaller than `body_bytes_max`."""
        self.requests = 0
        self.bytes = 0
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._body_bytes_max = body_bytes_max
        self.small_bytes_max = min(bytes_max, body_bytes_max)
        """Total of all bodies in bytes up to which every client has room, since no share is smaller."""
        self._held: dict[BodyOwner, int] = {}

    def hold(self, holders: Sequence[BodyOwner] = ()) -> BodyReservation:
        """Room for a request, until it is closed. Raises ClientFault if there is no place."""
        if self.requests >= self._requests_max:
            raise ClientFault(GATEWAY_FULL)
        return BodyReservation(self, holders)

    def objection(self, more_bytes: int, holders: Sequence[BodyOwner]) -> ErrorKind | None:
        """Reason why there is no room for `more_bytes`; None if there is."""
        if self.bytes + more_bytes > self._bytes_max:
            return GATEWAY_FULL
        if self.bytes + more_bytes <= self._body_bytes_max:
            return None  # no share is smaller than this
        for holder in holders:
            held = self._held.get(holder, 0)
            share = holder.share * (self._bytes_max - (self.bytes - held))
            if held + more_bytes > max(share, self._body_bytes_max):
                return BODIES_SHARE_EXCEEDED
        return None

    def take_place(self) -> None:
        """Take a place. Raises ClientFault if there is none."""
        if self.requests >= self._requests_max:
            raise ClientFault(GATEWAY_FULL)
        self.requests += 1

    def add(self, more_bytes: int, holders: Sequence[BodyOwner]) -> None:
        self.bytes += more_bytes
        for holder in holders:
            held = self._held.get(holder, 0) + more_bytes
            if held:
                self._held[holder] = held
            else:
                self._held.pop(holder, None)

    @property
    def holders(self) -> int:
        return len(self._held)


class BodyReservation:
    """Room of one request: as many bytes as have arrived of its body, and a place once the body is complete."""

    __slots__ = ("_bytes", "_has_place", "_holders", "_room")

    def __init__(self, room: BodyMemory, holders: Sequence[BodyOwner]) -> None:
        self._room = room
        self._holders = holders
        self._bytes = 0
        self._has_place = False

    def take(self, body_bytes: int) -> None:
        """Take room and a place for a body that has arrived whole. Raises ClientFault if there is none."""
        room = self._room
        if room.bytes + body_bytes > room.small_bytes_max:
            self.check(body_bytes)
        room.add(body_bytes, self._holders)
        self._bytes += body_bytes
        room.take_place()
        self._has_place = True

    def close(self) -> None:
        """Give everything back."""
        if self._bytes:
            self._room.add(-self._bytes, self._holders)
        if self._has_place:
            self._room.requests -= 1

    def check(self, announced_bytes: int) -> None:
        """Raise ClientFault if there is no room for so many bytes at the moment, so that the client need not send
        them."""
        objection = self._room.objection(announced_bytes, self._holders)
        if objection is not None:
            raise ClientFault(objection)

    def grow(self, more_bytes: int) -> None:
        """Take room for more of the body. Raises ClientFault if there is none."""
        self.check(more_bytes)
        self._room.add(more_bytes, self._holders)
        self._bytes += more_bytes

    def keep(self, more_bytes: int) -> bool:
        """Take `more_bytes` for the answer, or give some back if negative. False: there is no room, and none was
        taken."""
        if more_bytes > 0 and self._room.objection(more_bytes, self._holders) is not None:
            return False
        self._room.add(more_bytes, self._holders)
        self._bytes += more_bytes
        return True

    def settle(self) -> None:
        """Take the request's place, once its body is complete; bodies that are still arriving take no place from
        others. Raises ClientFault if there is none."""
        self._room.take_place()
        self._has_place = True
