"""What a scenario says of its controller, and of how clients find a gateway. It decides nothing.

Defaults are those of the programs themselves: of the controller, and of the official SDKs with their HTTP client.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from controller.core.config import ControllerConfig
from gateway.core.vocabulary import Jurisdiction
from loadgen.simulator.sections import Count, CountOrNone, Duration, Moment, Section, Share

_MILLISECOND_NS = 1_000_000
_SECOND_NS = 1_000 * _MILLISECOND_NS
_DEFAULTS = ControllerConfig()


class ControllerSection(Section):
    """One controller, which stands in a region beside its gateways and is cut off from them apart."""

    region: str
    standby: str | None = None
    """The region of a second one on the same store, of which one leads; without it there is one alone."""
    lease: Duration = 6 * _SECOND_NS
    """Of a pair: who does not renew it for so long has lost the store to the other."""
    margin: Duration = _SECOND_NS
    renew_interval: Duration = 1500 * _MILLISECOND_NS
    look_interval: Duration = 500 * _MILLISECOND_NS
    lapse_max: Duration = 30 * _SECOND_NS
    """One that cannot renew its lease keeps gateways for so long more."""
    restart: Duration = _SECOND_NS
    """After so long one that was deposed is started again."""
    probe_interval: Duration = 500 * _MILLISECOND_NS
    probe_timeout: Duration = _SECOND_NS
    report_interval: Duration = 500 * _MILLISECOND_NS
    """How often gateways say whom they hear, and the controller that it is there."""
    stream_timeout: Duration = 3 * _SECOND_NS
    """A stream on which nothing came for so long is lost."""
    redial: Duration = 500 * _MILLISECOND_NS
    """A gateway whose stream was lost dials again after so long."""
    store_delay: Moment = 5 * _MILLISECOND_NS
    """How long it takes to write something down."""
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
            ttl_s=self.ttl_s,
            closed_jurisdictions=frozenset(map(Jurisdiction, self.closed_jurisdictions)),
        )


class NamesSection(Section):
    """Clients know one name: who looks it up for them, and what they do when they reach nobody."""

    resolvers: Count = 4
    """A region's clients share so many caches."""
    lookup: Duration = 5 * _MILLISECOND_NS
    """What asking the cache takes."""
    server_timeout: Duration = 800 * _MILLISECOND_NS
    """A name server that does not answer for so long is passed over."""
    connect_timeout: Duration = 5 * _SECOND_NS
    retries: CountOrNone = 2
    back_off: Duration = 500 * _MILLISECOND_NS
    """Before the first retry; twice as long before each further one, ..."""
    back_off_max: Duration = 8 * _SECOND_NS
    """... up to this, less up to a quarter by chance."""
