"""Route53's API within the limits of one account: paced, one write at a time, and never a write past the lease.

boto3 blocks, so that each call has a thread. Only calls refused for their rate are sent again; every other failure goes
to the caller, since its effect is unknown.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from controller.dns.config import Route53Config
from controller.dns.provider import DnsError, DnsRefused, DnsUnavailable, check_lease
from controller.dns.route53.changes import RecordChange
from controller.dns.route53.record_sets import RecordSet, as_api, from_api
from controller.lease import Lease
from mesh.clock import Clock
from mesh.supervisor import Backoff

if TYPE_CHECKING:
    from types_boto3_route53.client import Route53Client

_SECOND_NS = 1_000_000_000
_PAGES_MAX = 100
"""Pages of one listing; a page has 300 record sets, or 100 health checks."""
_TOO_FAST = frozenset(
    {"PriorRequestNotComplete", "RequestLimitExceeded", "SlowDown", "Throttling", "ThrottlingException"}
)
_CREDENTIALS = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "MissingAuthenticationToken",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_THROTTLED = Backoff(250_000_000, 4 * _SECOND_NS)
_Answer = TypeVar("_Answer")


class BatchRefused(DnsRefused):
    """A change in the batch is invalid: no part of the batch was applied."""


class HealthCheck(Struct, frozen=True):
    check_id: str
    reference: str
    """Caller reference, given by the check's creator."""
    address: str
    config: Mapping[str, Any]


class RequestPace:
    """Rate limit: `calls_per_s` calls a second, and as many at once after a pause."""

    def __init__(self, calls_per_s: int, clock: Clock) -> None:
        self._gap_ns = _SECOND_NS // calls_per_s
        self._burst_ns = _SECOND_NS - self._gap_ns
        self._clock = clock
        self._free_ns = clock.now_ns() - self._burst_ns
        """Time at which the next call is due if calls are spread evenly."""

    def wait_s(self) -> float:
        """Return the seconds until the next call, which is counted as made then."""
        now_ns = self._clock.now_ns()
        turn_ns = max(self._free_ns, now_ns - self._burst_ns)
        self._free_ns = turn_ns + self._gap_ns
        return max(0, turn_ns - now_ns) / _SECOND_NS


class Route53Api:
    """API of one hosted zone."""

    def __init__(
        self,
        config: Route53Config,
        lease: Lease,
        clock: Clock,
        *,
        make_client: Callable[[], Route53Client],
        rng: random.Random,
        on_call: Callable[[str, str], None] = lambda _call, _result: None,
    ) -> None:
        """`on_call` is called with each call's name and result."""
        assert config.hosted_zone is not None, "checked with the file"
        self.hosted_zone = config.hosted_zone
        self.longest_s = config.longest_ns / _SECOND_NS
        """Longest duration of one call: connecting and waiting for the answer."""
        self._lease = lease
        self._pace = RequestPace(config.requests_per_s, clock)
        self._make_client = make_client
        self._client: Route53Client | None = None
        self._rng = rng
        self._on_call = on_call
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="route53-reads")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="route53-writes")
        self._writing: asyncio.Future[Any] | None = None
        """Running write, whose caller may have gone."""
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        self._readers.shutdown(wait=False)
        self._writer.shutdown(wait=False)

    # Records

    async def records(self, zone: str) -> list[RecordSet]:
        """Return the record sets of a name and below it."""
        found: list[RecordSet] = []
        start: dict[str, str] = {"StartRecordName": zone}
        for page in count(1):
            answer = await self._read(
                "list_record_sets",
                lambda client, start=start: client.list_resource_record_sets(  # type: ignore[misc]
                    HostedZoneId=self.hosted_zone, **start
                ),
            )
            sets = [from_api(each) for each in answer["ResourceRecordSets"]]
            ours = [each for each in sets if each.name == zone or each.name.endswith(f".{zone}")]
            found += ours
            if not answer.get("IsTruncated") or len(ours) < len(sets):
                return found
            if page == _PAGES_MAX:
                raise DnsUnavailable(f"there are more than {len(found)} record sets below {zone}")
            keys = {"Name": "StartRecordName", "Type": "StartRecordType", "Identifier": "StartRecordIdentifier"}
            start = {key: answer[f"NextRecord{word}"] for word, key in keys.items() if answer.get(f"NextRecord{word}")}
        raise AssertionError("the last page is the last")

    async def change(self, changes: Sequence[RecordChange], comment: str) -> str:
        """Apply all changes or none; returns the id of the change. Raises BatchRefused."""
        answer = await self._write(
            "change_record_sets",
            lambda client: client.change_resource_record_sets(
                HostedZoneId=self.hosted_zone,
                ChangeBatch={
                    "Comment": comment,
                    "Changes": [
                        {"Action": each.action.value, "ResourceRecordSet": as_api(each.record_set)} for each in changes
                    ],
                },
            ),
        )
        return answer["ChangeInfo"]["Id"].rpartition("/")[2]

    async def is_in_sync(self, change_id: str) -> bool:
        answer = await self._read("get_change", lambda client: client.get_change(Id=change_id))
        return answer["ChangeInfo"]["Status"] == "INSYNC"

    # Health checks

    async def health_checks(self, prefix: str) -> list[HealthCheck]:
        """Return the health checks whose reference begins with `prefix`."""
        found: list[HealthCheck] = []
        start: dict[str, str] = {}
        for _ in range(_PAGES_MAX):
            answer = await self._read(
                "list_health_checks",
                lambda client, start=start: client.list_health_checks(**start),  # type: ignore[misc]
            )
            for each in answer["HealthChecks"]:
                if each["CallerReference"].startswith(prefix):
                    said = each["HealthCheckConfig"]
                    found.append(HealthCheck(each["Id"], each["CallerReference"], said.get("IPAddress", ""), said))
            if not answer.get("IsTruncated"):
                return found
            start = {"Marker": answer["NextMarker"]}
        raise DnsUnavailable(f"the account has more than {_PAGES_MAX} pages of health checks")

    async def create_health_check(self, reference: str, config: Mapping[str, Any]) -> HealthCheck:
        answer = await self._write(
            "create_health_check",
            lambda client: client.create_health_check(
                CallerReference=reference,
                HealthCheckConfig=config,  # type: ignore[arg-type]
            ),
        )
        return HealthCheck(answer["HealthCheck"]["Id"], reference, config["IPAddress"], config)

    async def delete_health_check(self, check_id: str) -> None:
        await self._write("delete_health_check", lambda client: client.delete_health_check(HealthCheckId=check_id))

    # Calls

    async def _write(self, name: str, call: Callable[[Route53Client], _Answer]) -> _Answer:
        """Make one write at a time, also after one whose caller gave up: the earlier write ends before the next
        begins."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        return await self._paced(name, call, is_write=True)

    async def _read(self, name: str, call: Callable[[Route53Client], _Answer]) -> _Answer:
        return await self._paced(name, call, is_write=False)

    async def _paced(self, name: str, call: Callable[[Route53Client], _Answer], *, is_write: bool) -> _Answer:
        """Call at the permitted rate, and again while Route53 refuses the rate, until the caller gives up. Raises
        DnsError."""
        for failures in count(1):
            if (wait_s := self._pace.wait_s()) > 0:
                await asyncio.sleep(wait_s)
            try:
                answer = await self._called(call, is_write=is_write)
            except _TooFast:
                self._on_call(name, "throttled")
                await asyncio.sleep(_THROTTLED.pause_s(failures, self._rng))
            except DnsError:
                self._on_call(name, "failed")
                raise
            else:
                self._on_call(name, "done")
                return answer
        raise AssertionError("counting does not end")

    async def _called(self, call: Callable[[Route53Client], _Answer], *, is_write: bool) -> _Answer:
        if self._is_closed:
            raise DnsError("Route53 was let go of")
        loop = asyncio.get_running_loop()
        if self._client is None:
            self._client = await loop.run_in_executor(self._readers, _made, self._make_client)
        if is_write:
            check_lease(self._lease, self.longest_s)
        running = loop.run_in_executor(self._writer if is_write else self._readers, _performed, call, self._client)
        running.add_done_callback(_heard)
        if is_write:
            self._writing = running
        try:
            return await asyncio.shield(running)
        except _CredentialsRefused:
            self._client = None  # the credentials may be exchanged by the next call
            raise


class _TooFast(Exception):
    pass


class _CredentialsRefused(DnsUnavailable):
    pass


def _heard(done: asyncio.Future[Any]) -> None:
    """Retrieve the call's exception, which otherwise goes unread where the caller has gone."""
    if not done.cancelled():
        done.exception()


def _made(make_client: Callable[[], Route53Client]) -> Route53Client:
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - comes with the extra `aws`

    try:
        return make_client()
    except BotoCoreError as error:
        raise DnsUnavailable(f"Route53 cannot be asked: {error}") from error


def _performed(call: Callable[[Route53Client], _Answer], client: Route53Client) -> _Answer:
    """Call in a thread, and translate errors."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError  # noqa: PLC0415 - as above

    try:
        return call(client)
    except ClientError as error:
        raise _fault(error.response) from error
    except NoCredentialsError as error:
        raise _CredentialsRefused("Route53 is not asked: there are no credentials") from error
    except (BotoCoreError, OSError) as error:
        raise DnsUnavailable(f"Route53: {error}") from error


def _fault(response: Mapping[str, Any]) -> Exception:
    said = response.get("Error", {})
    code, words = str(said.get("Code", "")), str(said.get("Message", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    if code in _TOO_FAST or status == 429:
        return _TooFast(code)
    if code in _CREDENTIALS:
        return _CredentialsRefused(f"Route53 does not take our credentials: {code}, {words}")
    if code == "InvalidChangeBatch":
        return BatchRefused("; ".join([*_messages(response), *([words] if words else [])]) or code)
    if code == "NoSuchHostedZone":
        return DnsUnavailable(f"Route53: the hosted zone is not there: {words}")
    if status >= 500:
        return DnsUnavailable(f"Route53: {code}, {words}")
    return DnsRefused(f"Route53: {code}, {words}")


def _messages(response: Mapping[str, Any]) -> Iterator[str]:
    """Messages of a refused batch, one for each invalid change."""
    for each in response.get("messages", ()):
        yield str(each)
