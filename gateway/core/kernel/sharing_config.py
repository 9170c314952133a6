"""Config of how the fleet is shared: limits and weights of tenants, and settings of the service classes."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from gateway.core.kernel.limits_config import TenantLimits
from gateway.core.vocabulary import ModelName, ServiceClass, TenantName

_SECOND_NS = 1_000_000_000
PRIORITY_MAX: Final = 9
DEFAULT_TENANT: Final = TenantName("default")


class TenantConfig(TenantLimits, frozen=True):
    """Settings of one tenant, or, under the name `default`, of every tenant without an entry."""

    weight: float = 1.0
    """Weight under fair queuing: tenants that compete for the same engines are served tokens in proportion to it."""
    priority: int = 0
    """Priority of its requests; higher ones go first, until a lower one has waited `sharing.aging` for each step
    between."""
    service_class: ServiceClass | None = None
    """Service class of its requests that name none; None: the model's class, else interactive."""


class SharingConfig(Struct, frozen=True):
    """Fair queuing between tenants (Virtual Token Counter, Sheng et al., OSDI 2024)."""

    fair: bool = True
    """False: first come, first served, regardless of tenant."""
    input_weight: float = 1.0
    """Weight of a prompt token."""
    output_weight: float = 2.0
    """Weight of an output token; higher, because it occupies an engine for longer."""
    prefix_slack_tokens: int = 1024
    """Weighted tokens by which a tenant may exceed the lowest counter and still go first because a free engine has more
    of its prompt cached; 0: none."""
    aging_ns: int = 10 * _SECOND_NS
    """Wait after which a request rises by one step of priority."""
    yields_above: float | None = None
    """Multiple of its share of the running requests above which a tenant yields while other tenants are active: its
    requests are placed like batch requests, and after those of the others. None: no tenant yields."""
    tenants_max: int = 4096
    """Number of tenants with a counter of their own. Above it, counters of inactive tenants are dropped; if there are
    none, new tenants share one counter."""


class InteractiveConfig(Struct, frozen=True):
    """Class of requests for which a user waits."""

    first_token_ns: int | None = None
    """First-token objective: a request that cannot meet it is rejected on arrival. None: no objective."""
    models: tuple[ModelName, ...] = ()
    """Models whose requests have this class, unless the request, its key or its tenant names one."""


class BatchConfig(Struct, frozen=True):
    """Class of requests that use idle capacity in all regions, and yield to interactive ones."""

    first_token_ns: int | None = None
    """First-token objective: a request that cannot meet it is rejected on arrival. None: no objective."""
    models: tuple[ModelName, ...] = ()
    """Models whose requests have this class, unless the request, its key or its tenant names one."""
    free_share: float = 0.1
    """Share of an engine's room that is kept free for interactive requests."""
    queue_share: float = 0.75
    """Share of `queue.length_max`: above this total queue length, further requests of this class are refused."""
    wait_max_ns: int = 300 * _SECOND_NS
    """Longest wait in the queue, in place of `queue.wait_max`."""
    promotion_ns: int | None = 120 * _SECOND_NS
    """Wait after which a request is served like an interactive one. None: it waits for room until its queue
    deadline."""


class BestEffortConfig(Struct, frozen=True):
    """Class of requests that run on idle replicas, or not at all."""

    first_token_ns: int | None = None
    """First-token objective: a request that cannot meet it is rejected on arrival. None: no objective."""
    models: tuple[ModelName, ...] = ()
    """Models whose requests have this class, unless the request, its key or its tenant names one."""
    queue_share: float = 0.5
    """Share of `queue.length_max`: above this total queue length, further requests of this class are refused."""
    wait_max_ns: int = 60 * _SECOND_NS
    """Longest wait in the queue, in place of `queue.wait_max`."""


class ClassesConfig(Struct, frozen=True):
    """Service classes, with their objectives and their use of shared capacity."""

    interactive: InteractiveConfig = field(default_factory=InteractiveConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    best_effort: BestEffortConfig = field(default_factory=BestEffortConfig)

    def first_token_ns(self, service_class: ServiceClass) -> int | None:
        """First-token objective of the class."""
        if service_class is ServiceClass.INTERACTIVE:
            return self.interactive.first_token_ns
        return self.batch.first_token_ns if service_class is ServiceClass.BATCH else self.best_effort.first_token_ns

    def queue_share(self, service_class: ServiceClass) -> float:
        if service_class is ServiceClass.INTERACTIVE:
            return 1.0
        return self.batch.queue_share if service_class is ServiceClass.BATCH else self.best_effort.queue_share

    def wait_max_ns(self, service_class: ServiceClass, interactive_ns: int) -> int:
        if service_class is ServiceClass.INTERACTIVE:
            return interactive_ns
        return self.batch.wait_max_ns if service_class is ServiceClass.BATCH else self.best_effort.wait_max_ns

    def promotion_at(self, service_class: ServiceClass, now_ns: int) -> int | None:
        """Time at which a request that arrives now is served like an interactive one, if it still waits; None:
        never."""
        after_ns = self.batch.promotion_ns
        return None if service_class is not ServiceClass.BATCH or after_ns is None else now_ns + after_ns

    def class_of(self, model: ModelName) -> ServiceClass | None:
        """Default class of the model."""
        if model in self.interactive.models:
            return ServiceClass.INTERACTIVE
        if model in self.batch.models:
            return ServiceClass.BATCH
        return ServiceClass.BEST_EFFORT if model in self.best_effort.models else None


def tenant_in(tenants: dict[TenantName, TenantConfig], name: TenantName) -> TenantConfig:
    """Settings that apply to the tenant: its own entry, else the default entry, else the built-in defaults."""
    return tenants.get(name) or tenants.get(DEFAULT_TENANT) or _NOBODY


_NOBODY: Final = TenantConfig()
