"""Side channels of hand-offs: checks the hosts and ports in a hand-off against the addresses of the prefill worker
itself. Pure. Without this check a prefill worker could make its decode worker connect to any address.

Connectors differ in what they send, and new versions send more, so a member is judged by the look of its name and text:
anything that reads as a host, an address or a URL has to be the worker's own. No fault quotes what was found; the host
is reported separately, for operators only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

import msgspec
from msgspec import Struct

_VALUES_MAX = 10_000
"""Limit of values in members that are not only numbers; a worker of many nodes names a few hundred."""
_KEY_LENGTH_MAX = 128
_PORT_MAX = 65_535
_NUMBERS = re.compile(rb"[][\s\d,.+eE-]*|null|true|false")
_WORD = r"(?:^|[^a-z]|(?-i:[a-z](?=[A-Z])))"
"""Boundary before the last word of a name, as in remote_host and remoteHost, so that `chip` does not match `ip`."""
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
    """Host and port in one text, or the port alone."""
    COUNT = auto()
    """Number of hosts or ports."""


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


class SideChannel(Struct, frozen=True):
    """Addresses from which decode workers may fetch the KV blocks of one prefill worker."""

    hosts: frozenset[str] = frozenset()
    """Host names and addresses, in lower case and canonical form."""
    networks: tuple[str, ...] = ()
    first_port: int | None = None
    """First allowed port; None: any port of those hosts."""
    ports: int = 1
    """Number of ports, counted from the first."""

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


class Stray(Struct, frozen=True):
    """Fault of a hand-off: it names a forbidden host or port, or is too long to check."""

    why: str
    """Reason in words, without any content of the hand-off."""
    host: str = ""
    """Host that the hand-off names, reduced to letters, digits and the marks of addresses; empty if it names none."""


@lru_cache(256)
def _network(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text)


def stray_in(told: bytes, own: SideChannel) -> Stray | None:
    """Return the first fault of a hand-off: a host or port that is not the worker's own, or too many values to check.
    None if there is none. `told` is a JSON object. Raises msgspec's errors if it is not."""
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
    """Host for operators, without a user name, path or line break, since an engine could write anything there."""
    if not isinstance(found, str):
        return ""
    url = _URL.match(found)
    host = (found if url is None else url[1]).rpartition("@")[2]
    return _NOT_OF_HOSTS.sub("?", host[:_SHOWN_MAX])


def _values(name: str, found: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield each scalar value with the name of its member and whether it stands in a list. Names of members are yielded
    as text too."""
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
    """Return true if a number counts hosts, as in `num_hosts: 2` or `hosts: 2`. In a list of hosts a number may be a
    host."""
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
    """Return true if a text reads as an address, whatever its member is called."""
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
