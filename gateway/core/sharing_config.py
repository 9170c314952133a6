"""Who gets how much of the fleet: what tenants were promised, and what the classes of requests are served by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.core.limits_config import TenantLimits
from gateway.core.vocabulary import ModelName, ServiceClass, TenantName

_SECOND_NS = 1_000_000_000
PRIORITY_MAX: Final = 9
DEFAULT_TENANT: Final = TenantName("default")


@dataclass(frozen=True, slots=True)
class TenantConfig(TenantLimits):
    """One tenant, or under the name `default` everybody who has no entry."""

    weight: float = 1.0
    """Where tenants wait for the same engines, they are served tokens in proportion to this."""
    priority: int = 0
    """Whoever has a higher one goes before, until the other one has waited `sharing.aging` for each step between."""
    service_class: ServiceClass | None = None
    """Of its requests that name none; None: the model's, or else interactive."""


@dataclass(frozen=True, slots=True)
class SharingConfig:
    """How queues are shared between tenants (Virtual Token Counter, Sheng et al., OSDI 2024)."""

    fair: bool = True
    """False: whoever comes first is served first, whoever they are."""
    input_weight: float = 1.0
    """What a token of a prompt counts."""
    output_weight: float = 2.0
    """What a token of an answer counts: it keeps an engine for longer."""
    prefix_slack_tokens: int = 1024
    """By so much, weighed, a tenant may be ahead of whoever had least, and go first because an engine that is free
    knows more of its prompt; 0: nobody does."""
    aging_ns: int = 10 * _SECOND_NS
    """A request that waits for so long rises by one step of priority."""
    yields_above: float | None = None
    """A tenant that runs more than so many times its share of what runs here, while others came of late, leaves room
    for them: its requests go where a batch might, and after theirs. None: nobody's do."""
    tenants_max: int = 4096
    """Whose tokens are counted one by one; over it, those who have nothing here are forgotten, and if there are none,
    newcomers share a counter."""


@dataclass(frozen=True, slots=True)
class InteractiveConfig:
    first_token_ns: int | None = None
    """What was promised: who cannot have its first token in this time is told so when it comes. None: nothing was."""
    models: tuple[ModelName, ...] = ()
    """Requests for these are of this class, where neither they nor their key nor their tenant name one."""


@dataclass(frozen=True, slots=True)
class BatchConfig:
    first_token_ns: int | None = None
    models: tuple[ModelName, ...] = ()
    free_share: float = 0.1
    """Of an engine's room, so much is left for who is interactive."""
    queue_share: float = 0.75
    """Of `queue.length_max`: with so many waiting, whoever they are, no more of this class are let in."""
    wait_max_ns: int = 300 * _SECOND_NS
    """In place of `queue.wait_max`."""
    promotion_ns: int | None = 120 * _SECOND_NS
    """What has waited so long is served like what is interactive. None: it waits for room until its patience ends."""


@dataclass(frozen=True, slots=True)
class BestEffortConfig:
    first_token_ns: int | None = None
    models: tuple[ModelName, ...] = ()
    queue_share: float = 0.5
    wait_max_ns: int = 60 * _SECOND_NS


@dataclass(frozen=True, slots=True)
class ClassesConfig:
    interactive: InteractiveConfig = field(default_factory=InteractiveConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    best_effort: BestEffortConfig = field(default_factory=BestEffortConfig)

    def first_token_ns(self, service_class: ServiceClass) -> int | None:
        """The class's objective."""
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
        """When one that comes now is served like what is interactive, if it still waits."""
        after_ns = self.batch.promotion_ns
        return None if service_class is not ServiceClass.BATCH or after_ns is None else now_ns + after_ns

    def class_of(self, model: ModelName) -> ServiceClass | None:
        """By a model's default."""
        if model in self.interactive.models:
            return ServiceClass.INTERACTIVE
        if model in self.batch.models:
            return ServiceClass.BATCH
        return ServiceClass.BEST_EFFORT if model in self.best_effort.models else None


def tenant_in(tenants: dict[TenantName, TenantConfig], name: TenantName) -> TenantConfig:
    """What holds for it."""
    return tenants.get(name) or tenants.get(DEFAULT_TENANT) or _NOBODY


_NOBODY: Final = TenantConfig()
