"""Every setting of a gateway core: the kernel's, and a section for each feature that has one. Each line that names a
feature goes with the feature.
"""

from __future__ import annotations

from msgspec import field

from gateway.core.features.cache_digests.config import CacheDigestsConfig
from gateway.core.features.classes.config import ClassesConfig
from gateway.core.features.kv_events.config import KvEventsConfig
from gateway.core.features.leaving.config import LeavingConfig
from gateway.core.features.lengths.config import ThresholdConfig, TokenBudgetConfig
from gateway.core.features.limits.config import SharesConfig
from gateway.core.features.resume.config import ResumeConfig
from gateway.core.features.sharing.config import SharingConfig
from gateway.core.kernel.config import KernelConfig
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import TenantName


class CoreConfig(KernelConfig, frozen=True):
    """Settings that a core's decisions depend on."""

    token_budget: TokenBudgetConfig = field(default_factory=TokenBudgetConfig)
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    threshold: ThresholdConfig = field(default_factory=ThresholdConfig)
    tenants: dict[TenantName, TenantConfig] = field(default_factory=dict)
    """Settings by tenant; `default` holds for every tenant without an entry."""
    sharing: SharingConfig = field(default_factory=SharingConfig)
    classes: ClassesConfig = field(default_factory=ClassesConfig)
    shares: SharesConfig = field(default_factory=SharesConfig)
    cache_digests: CacheDigestsConfig = field(default_factory=CacheDigestsConfig)
    kv_events: KvEventsConfig = field(default_factory=KvEventsConfig)
    leaving: LeavingConfig = field(default_factory=LeavingConfig)


def all_of(config: KernelConfig) -> CoreConfig:
    """Settings of a core with those of features. A core is never given the kernel's alone."""
    assert isinstance(config, CoreConfig), "sections of features are missing"
    return config
