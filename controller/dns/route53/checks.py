"""Route53's own health checks of gateways: created as gateways appear, deleted an hour after the last record that names
them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from ipaddress import ip_address
from typing import Any

from controller.dns.config import HealthCheckConfig, HealthCheckKind
from controller.dns.route53.api import HealthCheck, Route53Api
from controller.dns.route53.record_sets import RecordSet
from mesh.clock import Clock
from mesh.naming.tree import RecordTree

_SECOND_NS = 1_000_000_000
UNUSED_MAX_NS = 3600 * _SECOND_NS
"""Time for which an unused check is kept: a gateway that is down is not named, and usually comes back."""
_FAST_S, _SLOW_S = 10, 30


class HealthChecks:
    """Health checks of one zone."""

    def __init__(self, config: HealthCheckConfig, zone: str, owner: str, api: Route53Api, clock: Clock) -> None:
        self._config = config
        self._host = zone.rstrip(".")
        self._api = api
        self._clock = clock
        whose = f"{owner} {zone} {api.hosted_zone}".encode()
        self._prefix = f"nightside-{hashlib.blake2b(whose, digest_size=8).hexdigest()}-"
        self._checks: dict[str, HealthCheck] | None = None
        """Checks by address; None: not listed yet."""
        self._strays: list[HealthCheck] = []
        """Checks of this owner that are of no further use."""
        self._unused_since_ns: dict[str, int] = {}

    def known(self, found: Iterable[RecordSet]) -> dict[str, str]:
        """Return ids of checks by address. Until the checks have been listed, those count that records use."""
        if self._config.kind is HealthCheckKind.NONE:
            return {}
        if self._checks is not None:
            return {address: each.check_id for address, each in self._checks.items()}
        return {each.values[0]: each.health_check for each in found if each.health_check and each.values}

    async def complete(self, tree: RecordTree, told: Collection[str]) -> str:
        """Create a check for each of the published addresses, `told`. Returns in words which cannot be checked; empty:
        none."""
        if self._config.kind is HealthCheckKind.NONE:
            return ""
        if self._checks is None:
            self._checks = await self._mine(tree)
        hidden = sorted(each for each in told if not ip_address(each).is_global)
        for address in sorted(set(told).difference(self._checks, hidden)):
            self._checks[address] = await self._api.create_health_check(
                self._reference(address), self._wanted(address, tree)
            )
        self._look_for_unused(told)
        if not hidden:
            return ""
        return f"Route53 cannot ask these for their health, which are not on the internet: {', '.join(hidden)}"

    async def sweep(self) -> None:
        """Delete the checks that no record names any more."""
        while self._strays:
            await self._api.delete_health_check(self._strays[0].check_id)
            del self._strays[0]

    async def _mine(self, tree: RecordTree) -> dict[str, HealthCheck]:
        """List the checks with the wanted settings. Others were made for other settings, or twice."""
        found: dict[str, HealthCheck] = {}
        for each in await self._api.health_checks(self._prefix):
            address = str(ip_address(each.address))
            wanted = self._wanted(address, tree)
            is_right = all(each.config.get(key) == word for key, word in wanted.items() if key != "IPAddress")
            if is_right and address not in found:
                found[address] = each
            else:
                self._strays.append(each)
        return found

    def _look_for_unused(self, told: Collection[str]) -> None:
        assert self._checks is not None
        now_ns, before = self._clock.now_ns(), self._unused_since_ns
        self._unused_since_ns = {each: before.get(each, now_ns) for each in self._checks if each not in told}
        for address, since_ns in list(self._unused_since_ns.items()):
            if now_ns - since_ns >= UNUSED_MAX_NS:
                self._strays.append(self._checks.pop(address))
                del self._unused_since_ns[address]

    def _reference(self, address: str) -> str:
        """Return a new reference: AWS remembers those used before, even of deleted checks."""
        what = f"{address} {self._clock.wall_ns()}".encode()
        return self._prefix + hashlib.blake2b(what, digest_size=12).hexdigest()

    def _wanted(self, address: str, tree: RecordTree) -> dict[str, Any]:
        config = self._config
        wanted: dict[str, Any] = {
            "IPAddress": address,
            "Port": config.port or tree.port,
            "Type": config.kind.upper(),
            "RequestInterval": _FAST_S if config.is_fast else _SLOW_S,
            "FailureThreshold": config.failures,
        }
        if config.kind is not HealthCheckKind.TCP:
            wanted |= {"ResourcePath": config.path, "FullyQualifiedDomainName": self._host}
        return wanted | ({"EnableSNI": True} if config.kind is HealthCheckKind.HTTPS else {})
