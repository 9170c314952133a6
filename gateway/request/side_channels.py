"""Where a prefill worker may lead its decode worker: what a hand-off names as hosts and ports, held against where the
worker itself is. Pure. Without it a prefill worker has its decode worker connect to any address of its choosing.

Connectors differ in what they tell and new versions tell more, so a member counts by what its name and its text look
like: whatever reads as a host, an address or a URL has to be the worker's own. No fault quotes what it found; the host
stands beside it, for operators alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

import msgspec

from gateway.core.value import value

_VALUES_MAX = 10_000
"""In what is not made of numbers alone: a worker of many nodes names a few hundred."""
_KEY_LENGTH_MAX = 128
_PORT_MAX = 65_535
_NUMBERS = re.compile(rb"[][\s\d,.+eE-]*|null|true|false")
_WORD = r"(?:^|[^a-z]|(?-i:[a-z](?=[A-Z])))"
"""Before the last word of a name, as in remote_host and remoteHost: `chip` is no `ip`."""
_LISTED = r"(?:_?list)?$"
_HOST_KEY = re.compile(
    rf"{_WORD}(?:host|hostname|addr|address|ip|url|uri|server|metaserver|endpoint)(?P<many>s|es)?{_LISTED}",
    re.IGNORECASE,
)
_PORT_KEY = re.compile(rf"{_WORD}ports?{_LISTED}", re.IGNORECASE)
_HOST_AND_PORT_KEY = re.compile(rf"{_WORD}host_?ports?{_LISTED}", re.IGNORECASE)
_COUNT_KEY = re.compile(r"(?:^|_)num(?:_|(?-i:(?=[A-Z])))", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)", re.DOTALL)
_AUTHORITY = re.compile(
    r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9_.-]{1,253})|([0-9A-Fa-f:.]{2,45}))(?::([0-9]{1,5}))?"
)
_ADDRESS = re.compile(r"\[?[0-9A-Fa-f.:]+\]?(?::[0-9]{1,5})?")
_NOT_OF_HOSTS = re.compile(r"[^A-Za-z0-9._:\[\]-]")
_SHOWN_MAX = 100
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Kind(Enum):
    HOST = auto()
    HOSTS = auto()
    PORT = auto()
    HOST_AND_PORT = auto()
    """In one text, or the port alone."""
    COUNT = auto()
    """How many of them there are."""


@lru_cache(1024)
def _kind(key: str) -> _Kind | None:
    host, port = _HOST_KEY.search(key), _PORT_KEY.search(key)
    if _HOST_AND_PORT_KEY.search(key):
        kind = _Kind.HOST_AND_PORT
    elif port is not None:
        kind = _Kind.PORT
    elif host is not None:
        kind = _Kind.HOSTS if host["many"] else _Kind.HOST
    else:
        return None
    return _Kind.COUNT if _COUNT_KEY.search(key) else kind


@value
class SideChannel:
    """Where decode workers may fetch what one prefill worker has read."""

    hosts: frozenset[str] = frozenset()
    """In small letters: names, and addresses in their usual spelling."""
    networks: tuple[str, ...] = ()
    first_port: int | None = None
    """None: any port of those hosts."""
    ports: int = 1
    """From the first one on."""

    def has_host(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return host.lower().removesuffix(".") in self.hosts
        return str(address) in self.hosts or any(address in _network(each) for each in self.networks)

    def has_port(self, port: int) -> bool:
        if self.first_port is None:
            return 0 < port <= _PORT_MAX
        return 0 <= port - self.first_port < self.ports


NOWHERE = SideChannel()


@value
class Stray:
    """What of a hand-off leads elsewhere."""

    why: str
    """In words."""
    host: str = ""
    """The one that it names, in no more than letters, digits and marks of addresses; empty where it names none."""


@lru_cache(256)
def _network(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text)


def stray_in(told: bytes, own: SideChannel) -> Stray | None:
    """What of a hand-off leads elsewhere than to the worker that told it; None where nothing does. `told` is an object
    in JSON. Raises what msgspec does where it is not."""
    seen = 0
    for name, raw in _MEMBERS.decode(told).items():
        if _NUMBERS.fullmatch(raw) and len(name) <= _KEY_LENGTH_MAX and _kind(name) is None:
            continue
        for key, found, is_listed in _values(name, msgspec.json.decode(raw)):
            seen += 1
            if seen > _VALUES_MAX or len(key) > _KEY_LENGTH_MAX:
                return Stray("its hand-off is too long to be looked through")
            if not _is_count(key, found, is_listed) and (fault := _fault(key, found, own)):
                return Stray(fault, _host_shown(found))
    return None


def _host_shown(found: Any) -> str:
    """Without a user's name, a path or a line break: an engine could say anything there."""
    if not isinstance(found, str):
        return ""
    url = _URL.match(found)
    host = (found if url is None else url[1]).rpartition("@")[2]
    return _NOT_OF_HOSTS.sub("?", host[:_SHOWN_MAX])


def _values(name: str, found: Any) -> Iterator[tuple[str, Any, bool]]:
    """Everything in it that is neither a list nor an object, by the name of the member that it stands in, and whether
    it stands in a list there. The names of members count as text too."""
    held = [(name, found, False)]
    while held:
        key, part, is_listed = held.pop()
        if isinstance(part, dict):
            for inner, each in part.items():
                yield "", inner, False
                held.append((inner, each, False))
        elif isinstance(part, list):
            held.extend((key, each, True) for each in part)
        else:
            yield key, part, is_listed


def _is_count(key: str, found: Any, is_listed: bool) -> bool:
    """Says `num_hosts: 2` or `hosts: 2` how many there are? A number in a list of hosts may be one."""
    kind = _kind(key) if isinstance(found, int | float) else None
    return kind is _Kind.COUNT or (kind is _Kind.HOSTS and not is_listed)


def _fault(key: str, found: Any, own: SideChannel) -> str:
    if found is None:
        return ""
    kind = _kind(key)
    if kind is _Kind.PORT or (kind is _Kind.HOST_AND_PORT and not isinstance(found, str)):
        is_port = type(found) is int and own.has_port(found)
        return "" if is_port else "it names a port of a side channel that is not its own"
    if kind is not None or (isinstance(found, str) and _is_address(found)):
        is_host = isinstance(found, str) and _leads_to(found, own)
        return "" if is_host else "it names a host of a side channel that is not its own"
    return ""


def _is_address(text: str) -> bool:
    """Does a text read as an address whatever it is called?"""
    if "://" in text:
        return True
    host = _AUTHORITY.fullmatch(text) if _ADDRESS.fullmatch(text) else None
    if host is None:
        return False
    try:
        ip_address(host[1] or host[2] or host[3])
    except ValueError:
        return False
    return True


def _leads_to(text: str, own: SideChannel) -> bool:
    url = _URL.match(text)
    found = _AUTHORITY.fullmatch(url[1] if url is not None else text)
    if found is None:
        return False
    port = found[4]
    return own.has_host(found[1] or found[2] or found[3]) and (port is None or own.has_port(int(port)))
