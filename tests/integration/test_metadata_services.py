"""Metadata services of clouds, played by small servers that answer as the documents of each cloud say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

import aiohttp
import pytest
from aiohttp import web

from gateway.features.leaving.metadata import AwsMetadata, AzureMetadata, GcpMetadata, HostEnd, MetadataFault
from tests.support.listening import serving_http

NOW_S = datetime.fromisoformat("2026-03-01T12:00:00Z").timestamp()
TOKEN = "AQAEAFd"
SPOT, REBALANCE = "/latest/meta-data/spot/instance-action", "/latest/meta-data/events/recommendations/rebalance"
NOTICE = '{"action": "terminate", "time": "2026-03-01T12:02:00Z"}'
PREEMPTED, MAINTENANCE = "/computeMetadata/v1/instance/preempted", "/computeMetadata/v1/instance/maintenance-event"
SEGMENT_TURNS = 20
NAME, EVENTS = "/metadata/instance/compute/name", "/metadata/scheduledevents"


async def in_segments(request: web.Request, text: str) -> web.StreamResponse:
    """Answer of which the second half is sent once the client has had turns to take the first for the whole."""
    answer = web.StreamResponse()
    await answer.prepare(request)
    half = len(text) // 2
    for part in (text[:half], text[half:]):
        await answer.write(part.encode())
        for _ in range(SEGMENT_TURNS):
            await asyncio.sleep(0)
    return answer


@dataclass
class Cloud:
    """Metadata service that answers each path with a text in two segments, and others with 404."""

    needs: Mapping[str, str]
    """Header that each call has to have; others are refused with 401."""
    texts: dict[str, str] = field(default_factory=dict)
    queries: list[str] = field(default_factory=list)
    token: str = TOKEN
    url: str = ""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PUT":
            assert request.headers["X-aws-ec2-metadata-token-ttl-seconds"].isdecimal()
            assert request.path == "/latest/api/token"
            return await in_segments(request, self.token)
        if any(request.headers.get(name) != value for name, value in self.needs.items()):
            return web.Response(status=401)
        self.queries.append(request.query_string)
        text = self.texts.get(request.path)
        if text is None:
            return web.Response(status=404)
        return await in_segments(request, text)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[aiohttp.ClientSession]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        async with serving_http(web.AppRunner(app)) as port, aiohttp.ClientSession() as session:
            self.url = f"http://127.0.0.1:{port}"
            yield session


class TestAws:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""

    async def test_nothing_is_announced_until_ec2_interrupts(self) -> None:
        cloud = Cloud({"X-aws-ec2-metadata-token": TOKEN})
        async with cloud.serving() as session:
            metadata = AwsMetadata(session, cloud.url)
            assert await metadata.look(NOW_S) is None
            cloud.texts[SPOT] = NOTICE
            assert await metadata.look(NOW_S) == HostEnd(NOW_S + 120, "terminate")

    async def test_recommendations_are_taken_where_that_is_asked_for(self) -> None:
        cloud = Cloud({"X-aws-ec2-metadata-token": TOKEN}, {REBALANCE: '{"noticeTime": "2026-03-01T11:59:00Z"}'})
        async with cloud.serving() as session:
            assert await AwsMetadata(session, cloud.url).look(NOW_S) is None
            assert await AwsMetadata(session, cloud.url, 600).look(NOW_S) == HostEnd(NOW_S + 540, "rebalance")

    @pytest.mark.parametrize("text", ["", "nonsense", "{}", '{"action": "stop", "time": "soon"}'])
    async def test_what_cannot_be_read_is_a_fault(self, text: str) -> None:
        cloud = Cloud({"X-aws-ec2-metadata-token": TOKEN}, {SPOT: text or " "})
        async with cloud.serving() as session:
            with pytest.raises(MetadataFault):
                await AwsMetadata(session, cloud.url).look(NOW_S)

    async def test_white_space_around_a_token_is_no_part_of_it(self) -> None:
        cloud = Cloud({"X-aws-ec2-metadata-token": TOKEN}, {SPOT: NOTICE}, token=f"{TOKEN}\n")
        async with cloud.serving() as session:
            assert await AwsMetadata(session, cloud.url).look(NOW_S) == HostEnd(NOW_S + 120, "terminate")

    async def test_a_token_that_no_header_can_hold_is_a_fault(self) -> None:
        cloud = Cloud({}, {SPOT: NOTICE}, token=f"{TOKEN}\n{TOKEN}")
        async with cloud.serving() as session:
            with pytest.raises(MetadataFault, match="cannot be asked"):
                await AwsMetadata(session, cloud.url).look(NOW_S)


class TestGcp:
    """https://cloud.google.com/compute/docs/instances/create-use-preemptible"""

    async def test_a_preemption_leaves_half_a_minute_from_when_it_is_seen(self) -> None:
        cloud = Cloud({"Metadata-Flavor": "Google"}, {PREEMPTED: "FALSE", MAINTENANCE: "NONE"})
        async with cloud.serving() as session:
            metadata = GcpMetadata(session, cloud.url)
            assert await metadata.look(NOW_S) is None
            cloud.texts[PREEMPTED] = "TRUE"
            assert await metadata.look(NOW_S) == HostEnd(NOW_S + 30, "preempted")
            assert await metadata.look(NOW_S + 5) == HostEnd(NOW_S + 30, "preempted")

    async def test_a_maintenance_that_ends_it_is_told_an_hour_before(self) -> None:
        cloud = Cloud({"Metadata-Flavor": "Google"}, {PREEMPTED: "FALSE", MAINTENANCE: "MIGRATE_ON_HOST_MAINTENANCE"})
        async with cloud.serving() as session:
            metadata = GcpMetadata(session, cloud.url)
            assert await metadata.look(NOW_S) is None
            cloud.texts[MAINTENANCE] = "TERMINATE_ON_HOST_MAINTENANCE"
            assert await metadata.look(NOW_S) == HostEnd(NOW_S + 3600, "maintenance-event")
            cloud.texts[MAINTENANCE] = "NONE"
            assert await metadata.look(NOW_S + 5) is None
            cloud.texts[MAINTENANCE] = "TERMINATE_ON_HOST_MAINTENANCE"
            assert await metadata.look(NOW_S + 9) == HostEnd(NOW_S + 3609, "maintenance-event")


def events(*told: tuple[str, str, str, str]) -> str:
    """Document with events of this id, kind, machine and time."""
    listed = [
        f'{{"EventId": "{event}", "EventType": "{kind}", "ResourceType": "VirtualMachine", "Resources": ["{machine}"], '
        f'"EventStatus": "{"Scheduled" if time else "Started"}", "NotBefore": "{time}", "Description": "", '
        '"EventSource": "Platform", "DurationInSeconds": -1}'
        for event, kind, machine, time in told
    ]
    return f'{{"DocumentIncarnation": 1, "Events": [{", ".join(listed)}]}}'


class TestAzure:
    """https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events"""

    async def test_only_this_machines_events_that_end_it_count(self) -> None:
        cloud = Cloud({"Metadata": "true"}, {NAME: "gpu_0", EVENTS: events()})
        async with cloud.serving() as session:
            metadata = AzureMetadata(session, cloud.url)
            assert await metadata.look(NOW_S) is None
            others = ("a", "Preempt", "gpu_1", "Sun, 01 Mar 2026 12:00:30 GMT")
            pause = ("b", "Freeze", "gpu_0", "Sun, 01 Mar 2026 12:15:00 GMT")
            cloud.texts[EVENTS] = events(others, pause)
            assert await metadata.look(NOW_S) is None
            cloud.texts[EVENTS] = events(others, ("c", "Preempt", "gpu_0", "Sun, 01 Mar 2026 12:00:30 GMT"))
            assert await metadata.look(NOW_S) == HostEnd(NOW_S + 30, "Preempt")
        assert {query.partition("&")[0] for query in cloud.queries} == {
            "api-version=2021-02-01",
            "api-version=2020-07-01",
        }

    async def test_an_event_that_has_begun_keeps_its_time(self) -> None:
        cloud = Cloud({"Metadata": "true"}, {NAME: "gpu_0"})
        async with cloud.serving() as session:
            metadata = AzureMetadata(session, cloud.url)
            cloud.texts[EVENTS] = events(("a", "Preempt", "gpu_0", "Sun, 01 Mar 2026 12:00:30 GMT"))
            await metadata.look(NOW_S)
            cloud.texts[EVENTS] = events(("a", "Preempt", "gpu_0", ""))
            assert await metadata.look(NOW_S + 29) == HostEnd(NOW_S + 30, "Preempt")

    async def test_one_that_had_begun_before_ends_soon(self) -> None:
        cloud = Cloud({"Metadata": "true"}, {NAME: "gpu_0", EVENTS: events(("a", "Reboot", "gpu_0", ""))})
        async with cloud.serving() as session:
            metadata = AzureMetadata(session, cloud.url)
            assert await metadata.look(NOW_S) == HostEnd(NOW_S + 5, "Reboot")
            assert await metadata.look(NOW_S + 2) == HostEnd(NOW_S + 5, "Reboot")

    async def test_a_time_that_is_none_is_a_fault(self) -> None:
        cloud = Cloud({"Metadata": "true"}, {NAME: "gpu_0", EVENTS: events(("a", "Preempt", "gpu_0", "soon"))})
        async with cloud.serving() as session:
            with pytest.raises(MetadataFault, match="NotBefore"):
                await AzureMetadata(session, cloud.url).look(NOW_S)


async def test_a_service_that_does_not_answer_is_a_fault() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(MetadataFault, match="cannot be asked"):
            await GcpMetadata(session, "http://127.0.0.1:1").look(NOW_S)


async def test_so_is_one_that_refuses() -> None:
    cloud = Cloud({"Metadata-Flavor": "Microsoft"})
    async with cloud.serving() as session:
        with pytest.raises(MetadataFault, match="status 401"):
            await GcpMetadata(session, cloud.url).look(NOW_S)


async def test_an_answer_that_is_too_large_is_a_fault() -> None:
    cloud = Cloud({}, {PREEMPTED: "TRUE" + " " * (256 << 10)})
    async with cloud.serving() as session:
        with pytest.raises(MetadataFault, match="larger than 256 KiB"):
            await GcpMetadata(session, cloud.url).look(NOW_S)
