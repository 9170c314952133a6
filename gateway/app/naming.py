"""The gateway's part in answering for the mesh's one name, where its region file says that it has one.

It wires; what is said to whom is the record tree's.
"""

from __future__ import annotations

from gateway.app.desk import Desk
from gateway.config.sections import GatewayConfig
from gateway.ground.naming.limits import DnsLimits
from gateway.ground.naming.service import NameService


def make_names(config: GatewayConfig, desk: Desk) -> NameService:
    """Every gateway has one, so that all of them judge a tree alike; whether it listens is another matter."""
    service = NameService(desk.clock, desk.log, DnsLimits.from_config(config.dns))
    for each in service.counters.collectors():
        desk.metrics.registry.register(each)
    return service
