"""Metadata services of clouds, which tell a host that it will be taken away. Only the host itself can ask its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Protocol, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from mesh.bodies import read_body

_ANSWER_BYTES_MAX = 256 * 1024
_CALL_S = 10.0
_GCP_SHUTDOWN_S = 30
"""Seconds between the announcement of a preemption and the end, as the documents promise."""
_GCP_MAINTENANCE_S = 3600
"""Seconds between the announcement of a maintenance that ends the instance, and the maintenance."""
_Read = TypeVar("_Read")
_AZURE_BEGUN_S = 5
"""Seconds that are taken to be left where an event had begun before the first look."""
_AZURE_ENDS = frozenset({"Preempt", "Terminate", "Reboot", "Redeploy"})
"""Kinds of scheduled events that end what runs on the machine. `Freeze` only pauses it."""


class MetadataFault(Exception):
    """The service cannot be asked, or gave no usable answer; the message says why."""


class HostEnd(Struct, frozen=True):
    """Announced end of this host."""

    at_s: float
    """Wall time in seconds since 1970."""
    what: str
    """Word of the cloud for it."""


class HostMetadata(Protocol):
    """Metadata service of one cloud."""

    async def look(self, now_s: float) -> HostEnd | None:
        """Return the announced end of this host; None: none is announced. `now_s`: wall time in seconds since 1970.
        Raises MetadataFault."""
        ...


class CloudProvider(StrEnum):
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"


class _SpotAction(Struct):
    action: str
    time: datetime


class _Rebalance(Struct, rename="camel"):
    notice_time: datetime


class AwsMetadata:
    """Instance metadata service of EC2, version 2."""

    def __init__(self, session: aiohttp.ClientSession, url: str, rebalance_s: float | None = None) -> None:
        """`rebalance_s`: seconds in which a host leaves after a rebalance recommendation. None: these are ignored, as
        EC2 may never interrupt such a host."""
        self._session = session
        self._url = f"{url}/latest"
        self._rebalance_s = rebalance_s

    async def look(self, now_s: float) -> HostEnd | None:  # noqa: ARG002 - EC2 tells a time
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = await _told(self._session, "PUT", f"{self._url}/api/token", ttl)
        headers = {"X-aws-ec2-metadata-token": token.decode("latin-1").strip()}
        told = await _told(self._session, "GET", f"{self._url}/meta-data/spot/instance-action", headers, if_any=True)
        if told:
            action = _decoded(told, _SpotAction)
            return HostEnd(_seconds(action.time), action.action)
        if self._rebalance_s is None:
            return None
        path = "meta-data/events/recommendations/rebalance"
        told = await _told(self._session, "GET", f"{self._url}/{path}", headers, if_any=True)
        if not told:
            return None
        return HostEnd(_seconds(_decoded(told, _Rebalance).notice_time) + self._rebalance_s, "rebalance")


class GcpMetadata:
    """Metadata server of Compute Engine. It tells that the end comes, and not when: the time counts from the first look
    that finds it."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = f"{url}/computeMetadata/v1/instance"
        self._ends: dict[str, HostEnd] = {}
        """End of each kind, from when it was first seen until it is called off."""

    async def look(self, now_s: float) -> HostEnd | None:
        headers = {"Metadata-Flavor": "Google"}
        for path, wanted, left_s in (
            ("preempted", b"TRUE", _GCP_SHUTDOWN_S),
            ("maintenance-event", b"TERMINATE_ON_HOST_MAINTENANCE", _GCP_MAINTENANCE_S),
        ):
            told = await _told(self._session, "GET", f"{self._url}/{path}", headers)
            if told.strip() == wanted:
                return self._ends.setdefault(path, HostEnd(now_s + left_s, path))
            self._ends.pop(path, None)
        return None


class _AzureEvent(Struct, rename="pascal"):
    event_id: str
    event_type: str
    not_before: str = ""
    """Time before which it does not begin; empty once it has begun."""
    resources: list[str] = []


class _AzureEvents(Struct, rename="pascal"):
    events: list[_AzureEvent]


class AzureMetadata:
    """Scheduled Events of Azure's instance metadata service. A scale set's events are told to all of its machines, so
    the machine's own name is asked for, too."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = f"{url}/metadata"
        self._name = ""
        self._ends: dict[str, HostEnd] = {}
        """End by each event's id, as first told: an event that has begun has no time any more."""

    async def look(self, now_s: float) -> HostEnd | None:
        headers = {"Metadata": "true"}
        if not self._name:
            query = "instance/compute/name?api-version=2021-02-01&format=text"
            self._name = (await _told(self._session, "GET", f"{self._url}/{query}", headers)).decode("latin-1").strip()
        query = "scheduledevents?api-version=2020-07-01"
        told = _decoded(await _told(self._session, "GET", f"{self._url}/{query}", headers), _AzureEvents)
        ours = [each for each in told.events if self._name in each.resources and each.event_type in _AZURE_ENDS]
        self._ends = {each.event_id: self._end_of(each, now_s) for each in ours}
        return min(self._ends.values(), key=lambda end: end.at_s, default=None)

    def _end_of(self, event: _AzureEvent, now_s: float) -> HostEnd:
        """End that an event brings. Raises MetadataFault."""
        if not event.not_before:
            return self._ends.get(event.event_id) or HostEnd(now_s + _AZURE_BEGUN_S, event.event_type)
        try:
            return HostEnd(_seconds(parsedate_to_datetime(event.not_before)), event.event_type)
        except ValueError as error:
            raise MetadataFault(f"NotBefore is no time: {event.not_before[:40]!r}") from error


METADATA: Mapping[CloudProvider, tuple[str, Callable[[aiohttp.ClientSession, str], HostMetadata]]] = {
    CloudProvider.AWS: ("http://169.254.169.254", AwsMetadata),
    CloudProvider.GCP: ("http://metadata.google.internal", GcpMetadata),
    CloudProvider.AZURE: ("http://169.254.169.254", AzureMetadata),
}
"""Address of each cloud's service, and what asks it."""


def _seconds(time: datetime) -> float:
    """Seconds since 1970; a time without a zone is UTC."""
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


async def _told(
    session: aiohttp.ClientSession, method: str, url: str, headers: Mapping[str, str], *, if_any: bool = False
) -> bytes:
    """Body of an answer. `if_any`: empty where the service has nothing to tell, which it answers with 404. Raises
    MetadataFault."""
    try:
        timeout = aiohttp.ClientTimeout(total=_CALL_S)
        async with session.request(method, url, headers=headers, timeout=timeout, allow_redirects=False) as answer:
            if if_any and answer.status == 404:
                return b""
            if answer.status != 200:
                raise MetadataFault(f"{url} answered with status {answer.status}")
            return await read_body(answer, _ANSWER_BYTES_MAX)
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
        raise MetadataFault(f"{url} cannot be asked: {str(error) or type(error).__name__}") from error


def _decoded(told: bytes, kind: type[_Read]) -> _Read:
    """Answer as JSON. Raises MetadataFault."""
    try:
        return msgspec.json.decode(told, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MetadataFault(f"an answer is not as expected: {error}") from error
