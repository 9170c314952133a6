"""Samples of a pool at the gateway that serves it, from the gateways' metrics and state. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from loadgen.demo.members import Member
from loadgen.demo.region_files import POOL
from mesh.clock import Clock

_EVERY_S = 0.25
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


@dataclass(frozen=True, slots=True)
class PoolSample:
    """State of the pool at one gateway that has decode workers of it."""

    at_ns: int
    gateway: str
    policy: str
    imbalance_tokens: float
    """Difference in KV cache tokens between the fullest and the emptiest decode worker."""
    load_max_tokens: float
    """KV cache tokens of the fullest decode worker."""
    is_degraded: bool
    """The policy runs without its predictor."""
    histories_taken: int
    """Histories of pools that the gateway's process has taken from another gateway."""
    signatures_used: int
    signatures: int
    """Requests under expert locality since the gateway's process began, and of these the ones placed by it."""


@dataclass(slots=True)
class PoolSampler:
    members: Iterable[Member]
    session: aiohttp.ClientSession
    clock: Clock
    samples: list[PoolSample] = field(default_factory=list)

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            for member in self.members:
                sample = await self._sample(member)
                if sample is not None:
                    self.samples.append(sample)
            await asyncio.sleep(_EVERY_S)

    async def _sample(self, member: Member) -> PoolSample | None:
        """Sample of one gateway; None where it does not answer, or has no decode workers of the pool."""
        state = await member.state(self.session)
        pool = _pool_in(state)
        if state is None or pool is None or not any(each["workers"] for each in pool["groups"]):
            return None
        try:
            async with self.session.get(f"{member.admin}/metrics", timeout=_TIMEOUT) as response:
                values = _values(await response.text())
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        used = values.get(("nightside_decode_signatures_total", "used"), 0)
        return PoolSample(
            self.clock.now_ns(),
            member.gateway_id,
            pool["policy"],
            _imbalance(pool["groups"]),
            max(each["load_max"] for each in pool["groups"]),
            bool(values.get(("nightside_decode_degraded", ""), 0)),
            round(values.get(("nightside_pool_histories_total", "taken"), 0)),
            round(used),
            round(sum(count for (name, _), count in values.items() if name == "nightside_decode_signatures_total")),
        )


def _imbalance(groups: Sequence[Mapping[str, Any]]) -> float:
    """Difference between the fullest and the emptiest worker: of the one group, or of groups of one worker each."""
    if len(groups) == 1:
        return float(groups[0]["imbalance"])
    return float(max(each["load_max"] for each in groups) - min(each["load_max"] for each in groups))


def _pool_in(state: dict[str, Any] | None) -> dict[str, Any] | None:
    pools = [] if state is None else state.get("decode_pools", [])
    return next((each for each in pools if each["name"].partition("@")[0] == POOL), None)


def _values(page: str) -> dict[tuple[str, str], float]:
    """Values by series and by the label that tells them apart, summed over pools."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.startswith(("nightside_decode_", "nightside_pool_histories")):
                key = sample.name, sample.labels.get("state") or sample.labels.get("result") or ""
                found[key] = found.get(key, 0) + sample.value
    return found
