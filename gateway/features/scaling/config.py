"""Settings of the `scaling` section of a region file. The checks here decide nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from gateway.config.names import Model
from gateway.core.features.scaling.vocabulary import Floor, PoolSettings, ScalingSettings
from gateway.core.vocabulary import DEFAULT_POOL, ModelName, PoolName
from gateway.features.section import FeatureSection, WrittenFile
from mesh.faults import FileFault, KeyFaults
from mesh.settings import Section
from mesh.values import SECOND_NS, Id, WebUrl, is_this_machine_s, read_secret

_MAY_BE_ZERO = frozenset({"replicas", "replicas_min"})
_TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_POOLS_MAX = 64
_FLOORS_MAX = 96
REPLICAS_MAX = 10_000
CONCURRENCY_MAX = 100_000


class FloorConfig(Struct, frozen=True, kw_only=True):
    """Minimum number of replicas from a time of day until the next entry."""

    at: str
    """Time of day in UTC at which the minimum begins, such as `06:30`."""
    replicas: int
    """Minimum number of replicas from the time `at` on."""


class ScaledPoolConfig(Struct, frozen=True, kw_only=True):
    """Scaling bounds of one pool of this region, and the capacity of its replicas."""

    model: Model
    """Model of the pool's replicas; of several, the first that they list."""
    pool: Id = DEFAULT_POOL
    """Name of the pool."""
    concurrency: int
    """Requests that one replica can run at once within its latency objective."""
    replicas_min: int = 1
    """Minimum number of replicas."""
    replicas_max: int
    """Maximum number of replicas."""
    price: float = 0.0
    """Price of a replica-hour in the currency of the mesh; the cheapest region with the model is scaled first. 0: the
    region with the queue is."""
    floors: tuple[Annotated[FloorConfig, Section(_MAY_BE_ZERO)], ...] = ()
    """Minimum numbers of replicas by time of day, in order of time; the list repeats at midnight UTC. Empty:
    `replicas_min` alone."""

    def as_settings(self) -> PoolSettings:
        return PoolSettings(
            ModelName(self.model),
            self.concurrency,
            self.replicas_max,
            PoolName(self.pool),
            self.replicas_min,
            self.price,
            tuple(Floor(minute_of(each.at), each.replicas) for each in self.floors),
        )


class WebhookConfig(Struct, frozen=True, kw_only=True):
    """Webhook that is called at each change of the wanted number of replicas."""

    url: WebUrl
    """URL of the receiver."""
    secret_file: Path
    """File of the secret that signs each call, so that the receiver can verify it."""
    timeout_ns: int = 5 * SECOND_NS
    """Time limit of one try, from connecting to the response."""
    tries_max: int = 6
    """Most tries of one call."""
    retry_min_ns: int = 1 * SECOND_NS
    """First delay before a retry; it doubles with each failure."""
    retry_max_ns: int = 60 * SECOND_NS
    """Longest delay before a retry."""


class ScalingConfig(ScalingSettings, FeatureSection, frozen=True):
    """Scaling of pools: the wanted number of replicas of each. Pools that are not listed are not scaled."""

    pools: tuple[Annotated[ScaledPoolConfig, Section(_MAY_BE_ZERO)], ...] = ()
    """Pools that are scaled. Empty: none."""
    interval_ns: int = 15 * SECOND_NS
    """Interval of computing the wanted number of replicas."""
    webhook: WebhookConfig | None = None
    """Webhook for changes of the wanted number of replicas. None: changes are only exported as a metric."""

    def faults(self, file: WrittenFile) -> Iterator[FileFault]:
        for key, what in scaling_faults(self, file.served_whole(), insecure=file.insecure):
            yield FileFault(key, what)

    def secret_files(self) -> Iterator[Path]:
        if self.webhook is not None:
            yield self.webhook.secret_file


def minute_of(time_of_day: str) -> int:
    """Return `06:30` as minutes since midnight. Raises ValueError in words."""
    match = _TIME_OF_DAY.fullmatch(time_of_day)
    if match is None:
        raise ValueError(f"{time_of_day!r} is not a time of day such as 06:30")
    return int(match[1]) * 60 + int(match[2])


def scaling_faults(config: ScalingConfig, pools: set[tuple[str, str]], *, insecure: bool) -> Iterator[tuple[str, str]]:
    """Faults as (key, message). `pools` are those that the file has replicas for, by model and name."""
    if config.down_after_ns < config.interval_ns:
        yield "scaling.down_after", "is below scaling.interval, so that a single look would do"
    if config.slack_share > 1:
        yield "scaling.slack_share", "should be 0 to 1"
    if len(config.pools) > _POOLS_MAX:
        yield "scaling.pools", f"holds more than {_POOLS_MAX}"
    seen: set[tuple[str, str]] = set()
    for index, each in enumerate(config.pools):
        path = f"scaling.pools[{index}]"
        if (each.model, each.pool) in seen:
            yield path, f"{each.model!r} in {each.pool!r} is listed twice"
        seen.add((each.model, each.pool))
        if pools and (each.model, each.pool) not in pools:
            yield path, f"no replica of this file serves {each.model!r} in pool {each.pool!r} as a whole"
        yield from ((f"{path}.{key}", what) for key, what in _pool_faults(each))
    if config.webhook is not None:
        yield from _webhook_faults(config.webhook, insecure=insecure)


def _pool_faults(pool: ScaledPoolConfig) -> Iterator[tuple[str, str]]:
    if pool.replicas_min > pool.replicas_max:
        yield "replicas_min", "is above replicas_max"
    if pool.replicas_max > REPLICAS_MAX:
        yield "replicas_max", f"should be at most {REPLICAS_MAX:,}"
    if pool.concurrency > CONCURRENCY_MAX:
        yield "concurrency", f"should be at most {CONCURRENCY_MAX:,}"
    if len(pool.floors) > _FLOORS_MAX:
        yield "floors", f"holds more than {_FLOORS_MAX}"
    last = -1
    for index, floor in enumerate(pool.floors):
        if floor.replicas > pool.replicas_max:
            yield f"floors[{index}].replicas", "is above replicas_max"
        try:
            minute = minute_of(floor.at)
        except ValueError as error:
            yield f"floors[{index}].at", str(error)
            continue
        if minute <= last:
            yield f"floors[{index}].at", "should come after the one before"
        last = minute


def _webhook_faults(webhook: WebhookConfig, *, insecure: bool) -> Iterator[tuple[str, str]]:
    if not insecure and not webhook.url.startswith("https://") and not is_this_machine_s(webhook.url):
        yield "scaling.webhook.url", "is beyond this machine, without TLS; to allow that, write `insecure: true`"
    if webhook.retry_max_ns < webhook.retry_min_ns:
        yield "scaling.webhook.retry_max", "is below scaling.webhook.retry_min"
    try:
        read_secret(webhook.secret_file, "scaling.webhook.secret_file")
    except KeyFaults as faults:
        yield from ((fault.key, fault.message) for fault in faults.faults)
