"""Route53 over HTTP: an emulator behind a front that is as strict as AWS."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import boto3
import pytest
from botocore.config import Config

from controller.dns.config import Route53Config
from controller.dns.provider import DnsProvider
from controller.dns.route53.api import Route53Api
from controller.dns.route53.provider import Route53Dns
from gateway.ground.clock import Clock
from gateway.ground.values import SECOND_NS, Address
from tests.cloud.leases import Leading
from tests.cloud.programs import Emulator
from tests.cloud.route53_front import StrictRoute53
from tests.cloud.route53_names import answering
from tests.support.dns_conformance import DnsConformance

ZONE = "mesh.example."
LOCATIONS = {"EU": ("IE", "DE"), "US": ("US",), "AP": ("JP",)}


def client(url: str, timeout_s: float = 60.0) -> Any:
    config = Config(connect_timeout=timeout_s, read_timeout=timeout_s, retries={"total_max_attempts": 1})
    session = boto3.session.Session("test", "test", region_name="us-east-1")
    return session.client("route53", endpoint_url=url, config=config)


@dataclass
class Stand:
    """A hosted zone, its front, and who asks it."""

    front: StrictRoute53
    url: str
    emulator_url: str
    names: Address

    def provider(
        self, lease: Leading | None = None, *, owner: str = "nightside", clock: Clock | None = None, **more: Any
    ) -> Route53Dns:
        clock, lease = clock or Clock(), lease or Leading()
        config = Route53Config(hosted_zone=self.front.zone_id, locations=LOCATIONS, **more)
        timeout_s = config.timeout_ns / SECOND_NS
        api = Route53Api(config, lease, clock, make_client=lambda: client(self.url, timeout_s), rng=random.Random(0))
        return Route53Dns(config, api, ZONE, owner, lease, clock=clock)


@asynccontextmanager
async def standing(emulator: Emulator) -> AsyncIterator[Stand]:
    direct = await asyncio.to_thread(client, emulator.url)
    zone = await asyncio.to_thread(direct.create_hosted_zone, Name=ZONE, CallerReference=str(uuid4()))
    zone_id = zone["HostedZone"]["Id"].rpartition("/")[2]
    front = StrictRoute53(emulator.url, ZONE, zone_id)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(front.serving())
        names = await stack.enter_async_context(answering(front.records))
        yield Stand(front, url, emulator.url, names)
    assert not front.refusals, "what the front refused, AWS would have refused"


@pytest.fixture
async def stand(running_ministack: Emulator) -> AsyncIterator[Stand]:
    async with standing(running_ministack) as made:
        yield made


class TestConformance(DnsConformance):
    @pytest.fixture(autouse=True)
    def _serve(self, stand: Stand) -> None:
        stand.front.calls_per_s = 1000
        self.stand = stand

    async def open(self) -> DnsProvider:
        return self.stand.provider(requests_per_s=1000)

    @property
    def server(self) -> Address:
        return self.stand.names

    places_everybody = True
