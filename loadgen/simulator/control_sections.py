"""Sections of a scenario about its controller, and about how clients find a gateway. Values only.

Defaults are those of the controller, and of the official SDKs with their HTTP client.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from controller.core.config import ControllerConfig
from gateway.core.vocabulary import Jurisdiction
from loadgen.simulator.sections import Count, CountOrNone, Duration, Moment, ScenarioSection, Share
from mesh.naming.tree import FURTHER_MAX

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000 * _MILLISECOND_NS
_DEFAULTS = ControllerConfig()


class ControllerSection(ScenarioSection):
    """One controller, beside a region's gateways but with network connections of its own, which can be cut."""

    region: str
    standby: str | None = None
    """Region of a second controller on the same store, of which one leads; without it the controller is alone."""
    lease: Duration = 6 * _SECOND_NS
    """Lease of a pair: a controller that does not renew it for this long has lost the store to the other."""
    margin: Duration = _SECOND_NS
    renew_interval: Duration = 1500 * _MILLISECOND_NS
    look_interval: Duration = 500 * _MILLISECOND_NS
    lapse_max: Duration = 30 * _SECOND_NS
    """Time for which a controller that cannot renew its lease keeps its gateways' streams after the lease's end."""
    restart: Duration = _SECOND_NS
    """Delay until a deposed controller is started again."""
    probe_interval: Duration = 500 * _MILLISECOND_NS
    probe_timeout: Duration = _SECOND_NS
    report_interval: Duration = 500 * _MILLISECOND_NS
    """Interval at which gateways report the peers they hear, and the controller reports that it is alive."""
    stream_timeout: Duration = 3 * _SECOND_NS
    """Silence after which a stream counts as lost."""
    redial: Duration = 500 * _MILLISECOND_NS
    """Delay until a gateway whose stream was lost dials again."""
    store_delay: Moment = 5 * _MILLISECOND_NS
    """Duration of a write to the store."""
    probe_failures: Count = _DEFAULTS.probe_failures_min
    silence: Duration = _DEFAULTS.silence_ns
    unknown_for: Duration = _DEFAULTS.unknown_for_ns
    return_after: Duration = _DEFAULTS.return_after_ns
    return_after_max: Duration = _DEFAULTS.return_after_max_ns
    steady_after: Duration = _DEFAULTS.steady_after_ns
    freeze_window: Duration = _DEFAULTS.freeze_window_ns
    freeze_max: Duration = _DEFAULTS.freeze_max_ns
    step_share: Annotated[Share, Field(gt=0)] = _DEFAULTS.step_share
    step: Duration = _DEFAULTS.step_ns
    left_out_retry: Duration = _DEFAULTS.left_out_retry_ns
    refusing_share: Share = 0.0
    """Share of other homes' pools and replicas that a gateway leaves out, as one that lacks a key for them does; drawn
    anew for each process."""
    history_interval: Duration | None = None
    """Shortest interval at which gateways send the history of a disaggregated pool. None: histories do not travel."""
    further_gateways: Annotated[int, Field(ge=0, le=FURTHER_MAX)] = _DEFAULTS.further_gateways
    ttl_s: Count = _DEFAULTS.ttl_s
    closed_jurisdictions: tuple[str, ...] = ()

    def as_config(self) -> ControllerConfig:
        return ControllerConfig(
            probe_failures_min=self.probe_failures,
            silence_ns=self.silence,
            unknown_for_ns=self.unknown_for,
            return_after_ns=self.return_after,
            return_after_max_ns=self.return_after_max,
            steady_after_ns=self.steady_after,
            freeze_window_ns=self.freeze_window,
            freeze_max_ns=self.freeze_max,
            step_share=self.step_share,
            step_ns=self.step,
            left_out_retry_ns=self.left_out_retry,
            further_gateways=self.further_gateways,
            ttl_s=self.ttl_s,
            closed_jurisdictions=frozenset(map(Jurisdiction, self.closed_jurisdictions)),
        )


class NamesSection(ScenarioSection):
    """Resolution of the mesh's name by clients, and their behaviour when they reach no gateway."""

    resolvers: Count = 4
    """Number of caches that a region's clients share."""
    lookup: Duration = 5 * _MILLISECOND_NS
    """Duration of a query to the cache."""
    server_timeout: Duration = 800 * _MILLISECOND_NS
    """Time after which the next name server is asked instead of one that does not answer."""
    connect_timeout: Duration = 5 * _SECOND_NS
    retries: CountOrNone = 2
    back_off: Duration = 500 * _MILLISECOND_NS
    """Delay before the first retry; it doubles with each further one, up to `back_off_max`, less up to a quarter by
    chance."""
    back_off_max: Duration = 8 * _SECOND_NS
    """Maximum delay before a retry."""
