"""DNS service of a gateway, which answers for the mesh's name where the region file says so.

It only wires; the record tree decides the answers.
"""

from __future__ import annotations

from gateway.app.observed_core import ObservedCore
from gateway.config.sections import GatewayConfig
from mesh.naming.limits import DnsLimits
from mesh.naming.service import NameService


def make_names(config: GatewayConfig, observed: ObservedCore) -> NameService:
    """Make the service. Every gateway has one, so that all of them check a record tree alike; listening is configured
    apart."""
    service = NameService(observed.clock, observed.log, DnsLimits.from_config(config.dns))
    for each in service.counters.collectors():
        observed.metrics.registry.register(each)
    return service
