"""Interface of the optional features outside the core: hooks that the gateway calls, and what a feature may ask of the
gateway.

An extension is made for every gateway. One that the config does not ask for does nothing and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.config.targets import ReplicaConfig
from gateway.control.histories import HistoryOffer
from gateway.core.allowance import LimitAllowance
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import PeerSpec, RequestProfile, TenantName
from gateway.door.api import ClientApi
from gateway.peers.heartbeats import ReadHeartbeat, WriteHeartbeat
from gateway.peers.trust import Trust
from gateway.records.finished import FinishedRequests
from gateway.records.metrics import GatewayMetrics
from gateway.request.callers import ClientKey, KeyId
from gateway.request.kept_answer import KeepAnswer
from gateway.request.parts import Compare
from gateway.request.promises import Promises
from mesh.clock import Clock
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import WantedReplicas
from mesh.page.rows import TableShown
from mesh.reloader import Reloader
from mesh.series import Label
from mesh.supervisor import OwnedLoops, Supervisor

LimitAllowances = Callable[[TenantName, int], list[LimitAllowance]]
"""Remainders of a tenant's limits at a time in nanoseconds."""
KeyInForce = Callable[[KeyId], ClientKey | None]
"""Finds a key of the keys file by its id, with its rights as they are now."""
PromptKey = Callable[[RequestProfile], bytes]


class Host(Protocol):
    """Gateway around a feature."""

    clock: Clock
    log: FilteringBoundLogger
    core: GatewayCore
    metrics: GatewayMetrics
    finished: FinishedRequests
    trust: Trust
    """Peers that were caught outside their policy. It exists once all extensions are made."""
    is_given_away: bool
    """Another process takes over or has taken over: operators' orders are for that process."""

    def submit(self, event: Event, /) -> None:
        """Submit an event to the core."""


class Extension:
    """One feature of one gateway, outside the core. Every hook does nothing unless a feature overrides it."""

    name: ClassVar[str]
    """Name of the feature, as in its packages and its state."""
    labels: ClassVar[Mapping[tuple[str, str], Label]] = {}
    """Meaning of labels of the feature's series, by series, which may be EVERY_SERIES, and label."""
    is_live: ClassVar[bool] = False
    """The feature's key of the region file can change while the gateway runs."""
    state_key: ClassVar[str] = ""
    """Key of the feature's part in the gateway's state; empty: the feature's name."""

    def __init__(self, config: GatewayConfig, host: Host, /) -> None:
        raise NotImplementedError

    allowances: LimitAllowances | None = None
    """Tells what is left of a tenant's limits, for response headers; None: this feature does not."""

    prompt_key: PromptKey | None = None
    """Key that stands for a request's prompt in what is kept on disk; None: this feature makes none."""
    promises: Promises | None = None
    """Service classes of tenants and models; None: this feature does not tell."""
    compare: Compare | None = None
    """Compares expert counts of a prefill with a pool's artifact; None: this feature does not."""
    keep_answer: KeepAnswer | None = None
    """Begins to keep an answer, to which another leg can append once it has broken; None: this feature does not."""

    @staticmethod
    def register_series(registry: CollectorRegistry, core: GatewayCore, /) -> None:
        """Register the feature's series of an idle core, to be described."""

    @staticmethod
    def check_files(config: GatewayConfig, before: GatewayConfig | None, /) -> None:
        """Check the files that the config names in the feature's key, but for those that the config before named, too.
        Raises ConfigError."""

    @staticmethod
    def check_notes(config: GatewayConfig, policy: ResidencyPolicy, /) -> Iterator[str]:  # noqa: ARG004
        """Notes of `nightside gateway check` on a valid config under the region's policy."""
        yield from ()

    @staticmethod
    def placement_bytes_max(config: GatewayConfig, /) -> int:  # noqa: ARG004
        """Most bytes that the feature holds for placing requests."""
        return 0

    def apply(self, config: GatewayConfig, orders: Orders, /) -> None:
        """Take in a config and a controller's orders, before the core serves by them and whenever they change."""

    def restore(self) -> None:
        """Put operators' stored orders in force, before the core serves by them. A later call takes over what another
        process of this gateway stored meanwhile. Calls come five times a second during a take-over, so they are to be
        cheap."""

    def notes(self) -> dict[str, str]:
        """Warnings for operators while the gateway is ready, by name."""
        return {}

    def abilities(self) -> tuple[str, ...]:
        """Requirements of other gateways' pools that this gateway meets, as controllers read them."""
        return ()

    def on_page(self) -> dict[str, object]:
        """Fields of the gateway's own state on the operators' page."""
        return {}

    def page_table(self) -> TableShown | None:
        """Table of the feature on the operators' page; None: no table."""
        return None

    def follow(self, replicas: Sequence[ReplicaConfig], /) -> None:
        """Take in the replicas that this gateway serves, whenever they change and before the core does."""

    def assigned(self) -> None:
        """Take in that the core has an assignment with the replicas that were followed last."""

    def add_reloads(self, reloader: Reloader, /) -> None:
        """Add what is read again when it changes."""

    def run(self, loops: Supervisor, tenure: OwnedLoops, /) -> None:
        """Start background work, before the gateway serves: in `loops`, or in `tenure`, whose loops run only while this
        process owns the gateway's stores."""

    def begin(self) -> None:
        """Start what needs the core to have the first replicas and pools."""

    def serve_clients(self, api: ClientApi, key_in_force: KeyInForce | None, /) -> None:
        """Add to the clients' API, before it is served. `key_in_force` finds keys of the keys file by id; None: the
        gateway has none."""

    def describe(self) -> object | None:
        """State for operators, JSON-able."""
        return None

    def add_routes(self, admin: web.Application, /) -> None:
        """Add routes to the application for operators."""

    def heartbeat_writer(self) -> WriteHeartbeat | None:
        """Writer of one new subscription of a peer, which adds to each heartbeat that is about to be sent on it; None
        if the feature adds nothing."""
        return None

    def heartbeat_reader(self, peer: PeerSpec, /) -> ReadHeartbeat | None:  # noqa: ARG002
        """Reader of a peer's heartbeats, or None if the feature takes nothing from them."""
        return None

    def pool_histories(self) -> list[HistoryOffer]:
        """Histories of the pools that this gateway serves, for the gateways that serve them next."""
        return []

    def take_history(self, history: PoolHistory, /) -> None:
        """Take the history of a pool from the gateway that served it before."""

    def wanted_replicas(self) -> tuple[WantedReplicas, ...]:
        """Wanted replicas, for a controller's display."""
        return ()


def no_allowances(_tenant: TenantName, _now_ns: int) -> list[LimitAllowance]:
    """Stand for the limits of a gateway that has none."""
    return []
