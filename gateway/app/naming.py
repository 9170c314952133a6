"""The gateway's part in answering for the mesh's one name, where its region file says that it has one.

It wires; what is said to whom is the record tree's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.app.desk import Desk
from gateway.config.sections import GatewayConfig
from gateway.ground.naming.limits import DnsLimits
from gateway.ground.naming.service import NameService


@asynccontextmanager
async def serve_names(config: GatewayConfig, desk: Desk) -> AsyncIterator[NameService]:
    """Every gateway has one, so that all of them judge a tree alike; whether it listens is another matter. Raises
    OSError when an address cannot be listened on."""
    service = NameService(desk.clock, desk.log, DnsLimits.from_config(config.dns))
    for each in service.counters.collectors():
        desk.metrics.registry.register(each)
    await service.start(config.dns.listen)
    try:
        yield service
    finally:
        await service.stop()
