"""Scenario: one YAML value that describes regions, clients and their requests, and faults.

It is read once and checked as a whole; durations and the sections of a run are written as in a region file. It decides
nothing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, Self

from msgspec import structs
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Strict,
    ValidationInfo,
    model_validator,
)

from gateway.config.region_file import CoreFile
from gateway.core.kernel.residency import ResidencyPolicy, Verdict, may_process
from gateway.core.vocabulary import (
    GatewayId,
    Jurisdiction,
    ModelName,
    Place,
    PoolName,
    PoolSpec,
    RegionName,
    ReplicaId,
    ReplicaRole,
    ReplicaSpec,
    ServiceClass,
    TenantName,
)
from gateway.features.prices.file import parse_prices, read_prices_file
from gateway.features.sections import POOL_CHECKS
from gateway.policy.file import LoggingSection, PolicyDocument, PolicyPlaces, TenantSection
from loadgen.engine.decode_group import DecodeGroupConfig
from loadgen.engine.model import EngineConfig
from loadgen.engine.presets import PRESETS
from loadgen.questions import Questions, parse_questions
from loadgen.round_trips import parse_round_trips
from loadgen.simulator.batch_sections import BatchesSection
from loadgen.simulator.control_sections import ControllerSection, NamesSection
from loadgen.simulator.decode_workers import TransferConfig
from loadgen.simulator.faults import CONTROLLER, STANDBY, FaultKind, SimFault
from loadgen.simulator.money import PricedDay
from loadgen.simulator.network import NetworkConfig, Way
from loadgen.simulator.pool_sections import DecodeSection, DisaggregatedSection, UnifiedSection, pool_name
from loadgen.simulator.scaling_sections import ScalingMode, ScalingSection
from loadgen.simulator.sections import Count as _Count
from loadgen.simulator.sections import CountOrNone as _CountOrNone
from loadgen.simulator.sections import Duration as _Duration
from loadgen.simulator.sections import Moment as _Moment
from loadgen.simulator.sections import Positive as _Positive
from loadgen.simulator.sections import ScenarioSection as _Section
from loadgen.simulator.sections import Share as _Share
from loadgen.simulator.sections import Size as _Size
from loadgen.traces.files import Draw, TraceError, guessed_format, opened, read_trace
from loadgen.traces.rates import Points, fitted, parse_rates
from loadgen.traces.replay import Replay, ReplayConfig, ReplayGroup, ReplayPace
from loadgen.traces.rows import RowFault, Trace, TraceFormat
from loadgen.workload import (
    BurstConfig,
    Bursts,
    MixedWorkload,
    MultiTurnWorkload,
    OneUser,
    RateCurve,
    TreeConfig,
    TreeOfThoughts,
    Workload,
    WorkloadConfig,
    diurnal,
    steady,
)
from mesh.faults import ConfigError
from mesh.yaml_file import YamlFile, read_yaml

_SECOND_NS = 1_000_000_000
_DAY_NS = 24 * 3600 * _SECOND_NS


def _beside_the_scenario(given: object, info: ValidationInfo) -> object:
    """Path of a file beside the scenario, made independent of the reader's working directory."""
    folder = info.context if isinstance(info.context, Path) else Path()
    return str(folder / given) if isinstance(given, str) else given


_File = Annotated[str, BeforeValidator(_beside_the_scenario)]


def _is_preset(name: str) -> str:
    if name not in PRESETS:
        raise ValueError(f"{name!r} is no preset; there are: {', '.join(PRESETS)}")
    return name


_PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
_Preset = Annotated[str, AfterValidator(_is_preset)]


# Systems and runs


class System(StrEnum):
    """Load balancing system: its name stands for the settings in `SYSTEMS`, which a run may override."""

    NIGHTSIDE = "nightside"
    SKYWALKER = "skywalker"
    SKYWALKER_CH = "skywalker_ch"
    REGION_LOCAL = "region_local"
    GLOBAL_ROUND_ROBIN = "global_round_robin"
    GLOBAL_LEAST_LOAD = "global_least_load"
    GLOBAL_CONSISTENT_HASH = "global_consistent_hash"
    GLOBAL_SGLANG = "global_sglang"
    GLOBAL_LMETRIC = "global_lmetric"
    GLOBAL_LLM_D = "global_llm_d"
    GLOBAL_SESSION_STICKY = "global_session_sticky"
    GKE = "gke"

    @property
    def is_global(self) -> bool:
        """True for one gateway, in the balancer's region, in front of every replica."""
        return self.value.startswith("global_")


def _global(policy: str) -> dict[str, Any]:
    return {"placement": {"policy": policy, "overflow": "off"}, "pushing": {"mode": "blind"}}


SYSTEMS: dict[System, dict[str, Any]] = {
    System.NIGHTSIDE: {},
    System.SKYWALKER: {"placement": {"policy": "prefix"}},
    System.SKYWALKER_CH: {"placement": {"policy": "consistent_hash"}},
    System.REGION_LOCAL: {"placement": {"policy": "prefix", "overflow": "off"}},
    System.GLOBAL_ROUND_ROBIN: _global("round_robin"),
    System.GLOBAL_LEAST_LOAD: _global("least_load"),
    System.GLOBAL_CONSISTENT_HASH: _global("consistent_hash"),
    System.GLOBAL_SGLANG: _global("cache_aware"),
    System.GLOBAL_LMETRIC: _global("lmetric"),
    System.GLOBAL_LLM_D: _global("affinity_load"),
    System.GLOBAL_SESSION_STICKY: _global("session_sticky"),
    System.GKE: {
        "placement": {"policy": "nearest_region"},
        "pushing": {"mode": "outstanding", "outstanding_max": 24},
    },
}
"""SkyWalker's configurations and the baselines of its §5.1. Settings that are absent here have a region file's
defaults: to match the paper, a run sets `explore_rule: share` and `in_band_credit: null`. Global balancers push
blindly; the multi-cluster gateway fills each region up to its capacity, then the next one, and pushes blindly once all
are full."""


class RunSection(CoreFile):
    """One way to serve the same load: a system, and the settings that differ from it."""

    name: str = ""
    system: System = System.NIGHTSIDE
    scaling: ScalingMode = ScalingMode.NONE
    exact_prefixes: bool = False
    """Gateways know what each engine has cached, as if it told them at once: an upper bound for a prefix index."""
    decode: DecodeSection | None = None
    """Admission to decode workers in this run, in place of each pool's own."""

    @model_validator(mode="before")
    @classmethod
    def _start_from_the_system(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        system = given.get("system", System.NIGHTSIDE)
        if system not in SYSTEMS:
            return given
        return {"name": str(system)} | merged(SYSTEMS[System(system)], given)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one, the second's values first, mappings within them likewise."""
    both = copy.deepcopy(dict(base))
    for key, value in over.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return both


# Regions and network


class AdoptedSection(_Section):
    """Replicas that a region's gateways own and that stand in another region."""

    region: str
    replicas: _Count


class RegionSection(_Section):
    """One region: its jurisdiction and policies, its gateways and its engines."""

    jurisdiction: str
    gateways: _Count = 1
    replicas: _CountOrNone = 0
    """Replicas, divided among the region's gateways."""
    adopted: tuple[AdoptedSection, ...] = ()
    disaggregated: DisaggregatedSection | None = None
    """Disaggregated pool beside those replicas; it belongs to the first gateway."""
    pools: Annotated[dict[_PoolName, UnifiedSection], Field(max_length=16)] = Field(default_factory=dict)
    """Further engines, in pools that take requests of different lengths; divided among the region's gateways."""
    preset: _Preset | None = None
    """Preset of its engines, if it differs from the scenario's."""
    slots: _Count | None = None
    identities: Annotated[tuple[str, ...], Field(max_length=16)] = ()
    """Identities of the model on its engines, in turn; an empty one, or none: not known. A disaggregated pool has the
    first."""
    process: PolicyPlaces | None = None
    """Places that may process its requests, as in a policy file; without it, everywhere in the scenario."""
    accept: PolicyPlaces | None = None
    tenants: dict[str, TenantSection] = Field(default_factory=dict)
    logging: LoggingSection = LoggingSection()


class NetworkSection(_Section):
    """Settings common to all connections."""

    in_region: _Duration = 500_000
    jitter_share: Annotated[float, Field(ge=0)] = 0.0
    loss_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    connection_timeout: _Duration = 20 * _SECOND_NS

    def as_config(self) -> NetworkConfig:
        return NetworkConfig(self.in_region, self.jitter_share, self.loss_share, self.connection_timeout)


# Workloads and clients


class MixtureSection(_Section):
    workload: str
    weight: _Positive = 1.0


class TraceSection(_Section):
    """Recorded trace to replay; see ReplayConfig."""

    file: _File
    """Path of the trace, absolute or beside the scenario."""
    format: TraceFormat | None = None
    """Format of the file, if its first line does not show it."""
    rates: _File | None = None
    """Path of a file with the hourly rates of ServeGen's clients."""
    rate_scale: _Positive = 1.0
    """Factor on the request rates of ServeGen's clients."""
    speed: _Positive = 1.0
    from_: _Moment = Field(default=0, alias="from")
    until: _Duration | None = None
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    requests_max: _Count | None = None
    input_tokens_max: _Count | None = None
    output_tokens_max: _Count | None = None
    scale_tokens: _Positive = 1.0
    pause_max: _Duration | None = None
    pace: ReplayPace = ReplayPace.ANSWERS

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.until is not None and self.until <= self.from_:
            raise ValueError("`until` should be later than `from`")
        return self

    def as_config(self) -> ReplayConfig:
        return ReplayConfig(
            self.speed,
            self.from_ / _SECOND_NS,
            None if self.until is None else self.until / _SECOND_NS,
            self.sample,
            self.requests_max,
            self.input_tokens_max,
            self.output_tokens_max,
            self.scale_tokens,
            None if self.pause_max is None else self.pause_max / _SECOND_NS,
            self.pace,
        )


class WorkloadSection(_Section):
    """One kind of programs; exactly one key beside `questions` is set."""

    conversations: WorkloadConfig | None = None
    tree: TreeConfig | None = None
    bursts: BurstConfig | None = None
    mixture: tuple[MixtureSection, ...] | None = None
    trace: TraceSection | None = None
    questions: _File | None = None
    """Path of a file of questions, beside the scenario, for a tree or for conversations."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        self._holds_one_of(*(name for name in type(self).model_fields if name != "questions"))
        if self.questions is not None and self.tree is None and self.conversations is None:
            raise ValueError("questions: only a tree or conversations ask them")
        return self

    @property
    def is_plain(self) -> bool:
        """True if it can be part of a mixture."""
        return self.mixture is None and self.trace is None


class DiurnalSection(_Section):
    peak: _Positive
    trough: Annotated[float, Field(ge=0)]
    day: _Duration
    """Duration of a day of 24 hours in the run."""
    shift_hours: float = 0.0
    """Hours by which this region's clock is ahead of the run's."""


class RatesSection(_Section):
    """Rate that was recorded over days, fitted to this run."""

    file: str | Annotated[tuple[tuple[float, Annotated[float, Field(ge=0)]], ...], Field(min_length=2)]
    """CSV file beside the scenario, or the points themselves, in hours and requests."""
    day: _Duration
    """Duration of a day of 24 hours in the run."""
    peak: _Positive | None = None
    """Requests per second at the highest point; an alternative to `mean`."""
    mean: _Positive | None = None
    """Requests per second on average; an alternative to `peak`."""
    from_hours: Annotated[float, Field(ge=0)] = 0.0
    """Hours from the beginning of the recording to that of the run."""
    shift_hours: float = 0.0
    """Hours by which this region's clock is ahead of the recorded one."""

    @model_validator(mode="before")
    @classmethod
    def _read_file(cls, given: Any, info: ValidationInfo) -> Any:
        """Replace a file's name by its content, so that a scenario is one value."""
        if isinstance(given, dict) and isinstance(given.get("file"), str):
            folder = info.context if isinstance(info.context, Path) else Path()
            return given | {"file": _rates_in(folder / given["file"])}
        return given

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        self._holds_one_of("peak", "mean")
        return self

    def as_curve(self) -> RateCurve:
        assert not isinstance(self.file, str), "files are read with the scenario"
        return fitted(
            self.file,
            day_s=self.day / _SECOND_NS,
            from_hours=self.from_hours,
            shift_hours=self.shift_hours,
            peak=self.peak,
            mean=self.mean,
        )


class ArrivalsSection(_Section):
    """Open loop: users come at a rate, each with one program, whatever the speed of answers."""

    rate: _Positive | None = None
    """Programs per second."""
    curve: tuple[tuple[_Moment, Annotated[float, Field(ge=0)]], ...] | None = None
    """Points of time and rate."""
    diurnal: DiurnalSection | None = None
    recorded: RatesSection | None = None
    variation: Annotated[float, Field(ge=0)] = 1.0
    """Variation of the gaps between arrivals: 1 is a Poisson process, more is burstier."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        self._holds_one_of("rate", "curve", "diurnal", "recorded")
        times = [at_ns for at_ns, _ in self.curve or ()]
        if times != sorted(set(times)):
            raise ValueError("the points of a curve should be in order of time")
        return self

    @property
    def shift_hours(self) -> float:
        """Hours by which the curve was moved to stand for this region."""
        curve = self.diurnal or self.recorded
        return curve.shift_hours if curve is not None else 0.0

    def as_curve(self) -> RateCurve:
        if self.recorded is not None:
            return self.recorded.as_curve()
        if self.diurnal is not None:
            day = self.diurnal
            return diurnal(peak=day.peak, trough=day.trough, day_s=day.day / _SECOND_NS, shift_hours=day.shift_hours)
        if self.curve is not None:
            return RateCurve(tuple((at_ns / _SECOND_NS, rate) for at_ns, rate in self.curve))
        assert self.rate is not None
        return steady(self.rate)


class ClientsSection(_Section):
    """Users in one region with the same kind of requests: a fixed number at a time, at a rate of arrivals, or, with
    neither, at the times of a trace."""

    region: str
    workload: str
    tenant: str = "default"
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    """Service class of all their requests."""
    clients: _Count | None = None
    arrivals: ArrivalsSection | None = None
    patience: _Duration | None = None
    """Time after which an impatient client leaves, if its answer is not complete."""
    impatient_share: _Share = 0.0
    """Share of requests whose client is impatient."""
    one_user: bool = False
    """All programs are those of one user, who runs several at once."""
    stores_responses: bool = False
    """Engines store their responses, and a request that continues one names it, as with `previous_response_id`."""
    whole_share: _Share = 0.0
    """Share of requests that ask for their answer in one piece, instead of as a stream."""
    weight: _Positive = 1.0
    """Weight of their share of a trace's sessions, beside other clients who replay it."""
    shift: _Moment = 0
    """Time by which they come earlier than their trace says; sessions before its beginning move to its end."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.clients is not None and self.arrivals is not None:
            raise ValueError("should hold one of clients, arrivals")
        if self.one_user and self.is_recorded:
            raise ValueError("one_user: a trace says itself who asks")
        if self.shift and not self.is_recorded:
            raise ValueError("shift: only a trace that is replayed at its own times can be shifted")
        return self

    @property
    def is_recorded(self) -> bool:
        return self.clients is None and self.arrivals is None


class FaultSection(_Section):
    """One fault; see FaultKind for the meaning of the keys."""

    kind: FaultKind
    target: str
    other: str = ""
    amount: Annotated[float, Field(ge=0)] = 0.0
    at: _Moment
    lasts: _Duration
    times: _Count = 1
    every: _Moment = 0

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.kind.joins_regions != bool(self.other):
            raise ValueError(f"{self.kind} takes {'two regions' if self.kind.joins_regions else 'no `other`'}")
        if self.kind.needs_amount and not self.amount:
            raise ValueError(f"{self.kind} needs an amount")
        if self.kind is FaultKind.LOSSY_LINK and self.amount > 1:
            raise ValueError(f"{self.kind} has a share as its amount, which is at most 1")
        if self.times > 1 and self.every < self.lasts:
            raise ValueError("`every` should be at least `lasts`")
        return self

    def as_fault(self) -> SimFault:
        return SimFault(self.kind, self.at, self.lasts, self.target, self.other, self.amount, self.times, self.every)


class PricesSection(_Section):
    """Price list, and the time of the week at which the run takes place."""

    file: str | dict[str, Any]
    """Prices file beside the scenario, or its content."""
    day: _Duration | None = None
    """Duration of a day of 24 hours in the run; without it, that of the clients' curves."""
    from_hours: Annotated[float, Field(ge=0, lt=168)] = 0.0
    """Hours from Monday's midnight in UTC to the beginning of the run."""

    @model_validator(mode="before")
    @classmethod
    def _read_file(cls, given: Any, info: ValidationInfo) -> Any:
        """Replace a file's name by its content, so that a scenario is one value."""
        if isinstance(given, dict) and isinstance(given.get("file"), str):
            folder = info.context if isinstance(info.context, Path) else Path()
            try:
                document = read_prices_file(folder / given["file"]).as_document()
            except ConfigError as error:
                raise ValueError(f"file: {error}") from error
            return given | {"file": json.loads(document)}
        return given

    @model_validator(mode="after")
    def _check_list(self) -> Self:
        try:
            self.as_day(_DAY_NS)
        except ConfigError as error:
            raise ValueError(f"file: {error}") from error
        return self

    def as_day(self, day_ns: int) -> PricedDay:
        """Price list placed in time. `day_ns`: duration of a day if the section has none."""
        assert not isinstance(self.file, str), "files are read with the scenario"
        return PricedDay(parse_prices(self.file), self.day or day_ns, round(self.from_hours * 3600))


class Scenario(_Section):
    """One scenario as a whole."""

    name: str
    about: str = ""
    seed: Annotated[int, Strict()] = 1
    duration: _Duration
    """Time for which load is sent."""
    warm_up: _Moment = 0
    """Beginning of the run that is left out of the figures: requests sent during it do not count."""
    drain: _Duration = 60 * _SECOND_NS
    """Maximum time for running requests to finish after that."""
    sample: _Duration = _SECOND_NS
    """Interval at which queues and loads are recorded for the plots."""
    model: str = "llama-3.1-8b-instruct"
    preset: _Preset = "llama-3.1-8b-l4"
    slots: _Count | None = None
    """Requests that an engine runs at once, if fewer than its preset allows."""
    kv_tokens: _Count | None = None
    """KV cache of an engine in tokens, if less than its preset has. Longer requests are refused."""
    kv_events: Annotated[bool, Strict()] = False
    """Engines tell their gateway what their KV caches store and remove."""
    kv_event_loss: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of these messages that are lost; what an engine has kept is repeated."""
    queued_requests_max: _Count | None = None
    """Waiting requests of an engine, beyond which it answers that it is busy."""
    prefix_block: _Size = 256
    probe_interval: _Duration = 100_000_000
    heartbeat_batch: _Moment = 0
    """Heartbeats that arrive within this time reach a gateway's core together: much faster with many regions, and a
    little less realistic."""
    request_deadline: _Duration = 600 * _SECOND_NS
    pause_after_failure: _Duration = _SECOND_NS
    resumes: Annotated[bool, Strict()] = False
    """Continue answers that break elsewhere, if a run's `resume` section allows it."""
    balancer_region: str = ""
    """Region of a global balancer; the first region if none is named."""
    round_trips: str | tuple[tuple[str, str, _Duration], ...]
    """File of round trips beside the scenario, or the pairs themselves."""
    network: NetworkSection = NetworkSection()
    regions: Annotated[dict[str, RegionSection], Field(min_length=1)]
    workloads: Annotated[dict[str, WorkloadSection], Field(min_length=1)]
    clients: Annotated[tuple[ClientsSection, ...], Field(min_length=1)]
    controller: ControllerSection | None = None
    """Controller; without one, gateways serve their regions' own replicas, and clients know which gateway is up."""
    names: NamesSection = NamesSection()
    """Resolution of the mesh's name by clients, if there is a controller."""
    batches: BatchesSection | None = None
    """Files of requests that are handed in while the load is sent."""
    scaling: ScalingSection | None = None
    """Scaling of replicas; without it, and in runs that do not scale, all replicas run all the time."""
    faults: tuple[FaultSection, ...] = ()
    prices: PricesSection | None = None
    """Prices; with them costs are reported, and gateways know the prices."""
    runs: Annotated[tuple[RunSection, ...], Field(min_length=1)] = (RunSection(),)

    @model_validator(mode="before")
    @classmethod
    def _read_round_trips(cls, given: Any, info: ValidationInfo) -> Any:
        """Replace a file's name by its content, so that a scenario is one value."""
        if isinstance(given, dict) and isinstance(given.get("round_trips"), str):
            folder = info.context if isinstance(info.context, Path) else Path()
            return given | {"round_trips": _pairs_in(folder / given["round_trips"])}
        return given

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        faults = [*self._name_faults(), *self._distance_faults(), *self._pool_faults(), *self._number_faults()]
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def _name_faults(self) -> Iterator[str]:
        for number, clients in enumerate(self.clients):
            if clients.region not in self.regions:
                yield f"clients[{number}].region: there is no region {clients.region!r}"
            if clients.workload not in self.workloads:
                yield f"clients[{number}].workload: there is no workload {clients.workload!r}"
            elif clients.is_recorded and self.workloads[clients.workload].trace is None:
                yield f"clients[{number}]: should hold one of clients, arrivals: only a trace knows its own times"
        for name, workload in self.workloads.items():
            if workload.trace is not None:
                yield from self._trace_faults(name, workload.trace)
            if workload.questions is not None:
                yield from self._question_faults(name, workload.questions)
            for part in workload.mixture or ():
                if part.workload not in self.workloads or not self.workloads[part.workload].is_plain:
                    yield f"workloads.{name}.mixture: there is no plain workload {part.workload!r}"
        for name, region in self.regions.items():
            for adopted in region.adopted:
                if adopted.region not in self.regions:
                    yield f"regions.{name}.adopted: there is no region {adopted.region!r}"
        if self.balancer_region and self.balancer_region not in self.regions:
            yield f"balancer_region: there is no region {self.balancer_region!r}"
        yield from self._batch_faults()
        yield from self._controller_faults()
        yield from self._scaling_faults()
        names = [run.name for run in self.runs]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"runs: two are called {name!r}"
        yield from self._target_faults()

    def _batch_faults(self) -> Iterator[str]:
        for number, batch in enumerate(() if self.batches is None else self.batches.files):
            if batch.region not in self.regions:
                yield f"batches.files[{number}].region: there is no region {batch.region!r}"
            if batch.workload not in self.workloads or self.workloads[batch.workload].trace is not None:
                yield f"batches.files[{number}].workload: there is no workload {batch.workload!r} without a trace"

    def _controller_faults(self) -> Iterator[str]:
        if self.controller is None:
            for number, fault in enumerate(self.faults):
                if fault.kind.needs_controller:
                    yield f"faults[{number}]: {fault.kind} needs a `controller`"
            return
        if self.controller.region not in self.regions:
            yield f"controller.region: there is no region {self.controller.region!r}"
        if self.controller.standby not in (None, *self.regions):
            yield f"controller.standby: there is no region {self.controller.standby!r}"
        for name in (CONTROLLER, STANDBY):
            if name in self.regions:
                yield f"regions: none can be called {name!r} beside a `controller`"
        for number, fault in enumerate(self.faults):
            if fault.kind.needs_pair and self.controller.standby is None:
                yield f"faults[{number}]: {fault.kind} needs a `controller.standby`"
            if fault.kind is FaultKind.GATEWAY_STALLED:
                yield f"faults[{number}]: {fault.kind} does not go with a `controller`, whose streams do not stall"
        for run in self.runs:
            if run.system.is_global:
                yield f"runs: {run.name} has one balancer for all, and nothing for a `controller` to assign"

    def _scaling_faults(self) -> Iterator[str]:
        if all(run.scaling is ScalingMode.NONE for run in self.runs):
            return
        if self.scaling is None:
            yield "runs: one scales, and there is no `scaling` that says how"
            return
        if self.controller is not None:
            yield "scaling: goes without a `controller`, which would give away what stops"
        for name, region in self.regions.items():
            if region.gateways > 1:
                yield f"regions.{name}: what scales is one gateway's `replicas`"
            if region.replicas < self.scaling.begin:
                yield f"regions.{name}.replicas: is below scaling.begin"
        for run in self.runs:
            if run.scaling is not ScalingMode.NONE and run.system.is_global:
                yield f"runs: {run.name} has one balancer for all, and no region to scale"

    def _trace_faults(self, name: str, trace: TraceSection) -> Iterator[str]:
        try:
            trace.format or guessed_format(Path(trace.file))
        except TraceError as error:
            yield f"workloads.{name}.trace.file: {error}"

    def _question_faults(self, name: str, file: str) -> Iterator[str]:
        try:
            if not questions_in(file).asked:
                yield f"workloads.{name}.questions: {Path(file).name} holds none"
        except TraceError as error:
            yield f"workloads.{name}.questions: {error}"

    def _target_faults(self) -> Iterator[str]:
        replicas = {str(spec.replica_id) for specs in self.fleet().values() for spec, _ in specs}
        for number, fault in enumerate(self.faults):
            if fault.kind.joins_regions:
                known = {*self.regions, *self._controllers()}
            elif fault.kind.hits_controller:
                known = set(self._controllers())
            else:
                known = replicas if fault.kind.hits_replica else set(map(str, self.fleet()))
            for name in filter(None, (fault.target, fault.other)):
                if name not in known:
                    yield f"faults[{number}]: there is no {name!r} for {fault.kind}"

    def _controllers(self) -> list[str]:
        if self.controller is None:
            return []
        return [CONTROLLER] if self.controller.standby is None else [CONTROLLER, STANDBY]

    def _distance_faults(self) -> Iterator[str]:
        ways = self.round_trips_ns()
        names = list(self.regions)
        for one in names:
            for other in names:
                if one < other and (one, other) not in ways:
                    yield f"round_trips: {one} to {other} is missing"

    def _pool_faults(self) -> Iterator[str]:
        for name, region in self.regions.items():
            pool = region.disaggregated
            if pool is not None and 0 < pool.kv_tokens < self._engine_of(region).context_tokens_max:
                most = self._engine_of(region).context_tokens_max
                yield f"regions.{name}.disaggregated.kv_tokens: should be at least {most}, the longest request"
        for run in self.runs:
            for called, spec in self.pools(run).items():
                for fault in (fault for check in POOL_CHECKS for fault in check(spec)):
                    yield f"runs: {run.name}: pool {called}: {fault.key}: {fault.message}"

    def _number_faults(self) -> Iterator[str]:
        if self.warm_up >= self.duration:
            yield "warm_up: should be shorter than duration"
        for name in {self.preset, *(region.preset for region in self.regions.values() if region.preset)}:
            block_bytes = PRESETS[name].block_tokens * 4
            if self.prefix_block % block_bytes:
                yield f"prefix_block: should be a multiple of {block_bytes} B, a block of {name}"

    # Parts of the world

    def place(self, region: str) -> Place:
        return Place(RegionName(region), Jurisdiction(self.regions[region].jurisdiction))

    def round_trips_ns(self) -> dict[Way, int]:
        """Round trips of all pairs of regions, in both directions."""
        assert not isinstance(self.round_trips, str), "files are read with the scenario"
        ways: dict[Way, int] = {}
        for one, other, round_trip_ns in self.round_trips:
            ways[RegionName(one), RegionName(other)] = ways[RegionName(other), RegionName(one)] = round_trip_ns
        return ways

    def fleet(self) -> dict[GatewayId, list[tuple[ReplicaSpec, EngineConfig]]]:
        """Replicas and engine sizes of each gateway of the mesh."""
        fleet: dict[GatewayId, list[tuple[ReplicaSpec, EngineConfig]]] = {}
        for region, section in self.regions.items():
            shares = _shared_out(self._replicas_of(region, section), section.gateways)
            shares[0] += self._pool_of(region, section)
            for name, pool in section.pools.items():
                engine = pool.engine_of(self._engine_of(section))
                specs = pool.specs(region, name, self.place(region), ModelName(self.model))
                members = _shared_out([(spec, engine) for spec in specs], section.gateways)
                for share, own in zip(shares, members, strict=True):
                    share.extend(own)
            for number, owned in enumerate(shares if not section.identities else _identified(shares, section)):
                fleet[GatewayId(f"{region}/gw{number}" if section.gateways > 1 else f"{region}/gw")] = owned
        return fleet

    def pools(self, run: RunSection) -> dict[PoolName, PoolSpec]:
        """Pools that have properties beside a name in a run, by name."""
        specs = [
            section.disaggregated.pool_of(region, self._engine_of(section), run.decode)
            for region, section in self.regions.items()
            if section.disaggregated is not None
        ]
        specs += [
            pool.spec_of(region, name, self._engine_of(section))
            for region, section in self.regions.items()
            for name, pool in section.pools.items()
        ]
        return {spec.name: spec for spec in specs}

    def disaggregated_pools(self) -> dict[PoolName, DisaggregatedSection]:
        """Sections of the disaggregated pools, by the pool's name."""
        return {
            pool_name(region): section.disaggregated
            for region, section in self.regions.items()
            if section.disaggregated is not None
        }

    def decode_groups(self) -> dict[str, tuple[DecodeGroupConfig, TransferConfig]]:
        """Settings of each decode group, by the group's name in its workers' specs."""
        return {
            spec.group: (pool.group_config(self._engine_of(section)), pool.transfer_config())
            for region, section in self.regions.items()
            if (pool := section.disaggregated) is not None
            for spec, _ in self._pool_of(region, section)
            if spec.role is ReplicaRole.DECODE
        }

    def _pool_of(self, region: str, section: RegionSection) -> list[tuple[ReplicaSpec, EngineConfig]]:
        if section.disaggregated is None:
            return []
        specs = section.disaggregated.replicas(region, self.place(region), ModelName(self.model))
        engine = self._engine_of(section)
        return [(spec, engine) for spec in specs]

    def _replicas_of(self, region: str, section: RegionSection) -> list[tuple[ReplicaSpec, EngineConfig]]:
        places = [self.place(region)] * section.replicas
        for adopted in section.adopted:
            places += [self.place(adopted.region)] * adopted.replicas
        engine = self._engine_of(section)
        return [
            (
                ReplicaSpec(
                    ReplicaId(f"{region}/{number}"), place, (ModelName(self.model),), tells_cache=self.kv_events
                ),
                engine,
            )
            for number, place in enumerate(places)
        ]

    def _engine_of(self, section: RegionSection) -> EngineConfig:
        engine = PRESETS[section.preset or self.preset]
        slots = section.slots or self.slots or engine.sequences_max
        blocks = engine.kv_blocks
        if self.kv_tokens is not None:
            blocks = min(blocks, max(1, self.kv_tokens // engine.block_tokens))
        return replace(
            engine,
            sequences_max=slots,
            queued_requests_max=self.queued_requests_max,
            kv_blocks=blocks,
            tells_cache=self.kv_events,
            context_tokens_max=min(engine.context_tokens_max, blocks * engine.block_tokens),
        )

    def policy_of(self, region: str) -> ResidencyPolicy:
        return self.policy_document(region).policy()

    def verdict(self, region: str, tenant: TenantName, there: str) -> Verdict:
        """Decision of a region's policy whether a tenant's requests may be processed in another one."""
        return may_process(self.policy_of(region), tenant, self.place(there))

    def policy_document(self, region: str) -> PolicyDocument:
        section = self.regions[region]
        everywhere = PolicyPlaces(jurisdictions=tuple(sorted({each.jurisdiction for each in self.regions.values()})))
        return PolicyDocument(
            version=1,
            region=region,
            jurisdiction=section.jurisdiction,
            process=section.process or everywhere,
            accept=section.accept or everywhere,
            tenants=section.tenants,
            logging=section.logging,
        )

    def workload(self, name: str) -> Workload:
        section = self.workloads[name]
        questions = questions_in(section.questions).asked if section.questions is not None else ()
        if section.conversations is not None:
            return MultiTurnWorkload(section.conversations, seed=self.seed, questions=questions)
        if section.tree is not None:
            return TreeOfThoughts(section.tree, seed=self.seed, questions=questions)
        if section.bursts is not None:
            return Bursts(section.bursts, seed=self.seed)
        assert section.mixture is not None, "who replays a trace is told apart by `workload_of`"
        parts = [(part.weight, self.workload(part.workload)) for part in section.mixture]
        return MixedWorkload(parts, seed=self.seed)

    def workload_of(self, number: int) -> Workload:
        """Workload of these clients. Raises ConfigError if a trace cannot be read, or holds nothing for them."""
        clients = self.clients[number]
        if self.workloads[clients.workload].trace is None:
            workload = self.workload(clients.workload)
        else:
            together = [n for n, each in enumerate(self.clients) if each.workload == clients.workload]
            part = self.replay(clients.workload).of_group(together.index(number))
            if not part.requests and not clients.is_recorded:
                raise ConfigError(f"clients[{number}]: nothing of the trace {clients.workload!r} is left for them")
            workload = part
        return OneUser(workload, f"user-{number}") if clients.one_user else workload

    def replay(self, name: str) -> Replay:
        """Trace, divided among all clients who replay it. Raises ConfigError if it cannot be read."""
        section = self.workloads[name].trace
        assert section is not None, f"{name} is no trace"
        groups = (
            ReplayGroup(each.region, each.weight, each.shift / _SECOND_NS)
            for each in self.clients
            if each.workload == name
        )
        return _replay_in(section, self.seed, tuple(groups))

    @property
    def day_ns(self) -> int:
        """Duration of a day of 24 hours in the run: that of the first client curve with one, else 24 hours."""
        arrivals = (each.arrivals for each in self.clients if each.arrivals is not None)
        curves = (each.diurnal or each.recorded for each in arrivals)
        return next((each.day for each in curves if each is not None), _DAY_NS)

    def tenants(self) -> list[TenantName]:
        names = [each.tenant for each in self.clients]
        names += [] if self.batches is None else [each.tenant for each in self.batches.files]
        return list(dict.fromkeys(map(TenantName, names)))


def load_scenario(
    path: Path,
    changes: Mapping[str, object] | None = None,
    complete: Callable[[dict[str, Any], Path], None] | None = None,
) -> Scenario:
    """Read a scenario, with some of its keys changed; `complete` adds what its reader can do without. Raises
    ConfigError, one line for each fault."""
    file = read_yaml(path)
    document = file.mapping()
    for key, value in (changes or {}).items():
        set_key(document, key, value)
    if complete is not None:
        complete(document, path)
    return parse_scenario(document, path, {} if changes else file.lines)


def parse_scenario(document: Mapping[str, Any], path: Path, lines: Mapping[str, int] | None = None) -> Scenario:
    """Parse a scenario. `path` names it in errors, `lines` gives the line of each key there, and relative paths start
    beside it. Raises ConfigError."""
    return YamlFile(path, document, lines or {}).read_as(Scenario, context=path.parent)


def check_playable(scenario: Scenario) -> None:
    """Check that a scenario has engines to simulate; a load for live endpoints needs none. Raises ConfigError."""
    if not any(scenario.fleet().values()):
        raise ConfigError(f"{scenario.name}: regions: at least one should have `replicas` to simulate")


def set_key(document: Any, key: str, value: Any) -> None:
    """Set `a.0.b` in a document of mappings and lists. Raises ConfigError if the path does not exist."""
    *way, last = key.split(".")
    place = document
    for part in way:
        if isinstance(place, list) and part.isdecimal() and int(part) < len(place):
            place = place[int(part)]
        elif isinstance(place, dict):
            place = place.setdefault(part, {})
        else:
            raise ConfigError(f"{key}: there is no {part!r} to go into")
    if isinstance(place, list) and last.isdecimal() and int(last) < len(place):
        place[int(last)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise ConfigError(f"{key}: there is no {last!r} to set")


def _identified(
    shares: list[list[tuple[ReplicaSpec, EngineConfig]]], section: RegionSection
) -> list[list[tuple[ReplicaSpec, EngineConfig]]]:
    """Shares of a region's replicas, each replica with its identity."""
    turns = cycle(section.identities)
    return [
        [
            (
                structs.replace(
                    spec, identity=next(turns) if spec.role is ReplicaRole.UNIFIED else section.identities[0]
                ),
                engine,
            )
            for spec, engine in share
        ]
        for share in shares
    ]


def _shared_out(
    replicas: list[tuple[ReplicaSpec, EngineConfig]], count: int
) -> list[list[tuple[ReplicaSpec, EngineConfig]]]:
    return [replicas[number::count] for number in range(count)]


def _replay_in(section: TraceSection, seed: int, groups: tuple[ReplayGroup, ...]) -> Replay:
    path, config = Path(section.file), section.as_config()
    rates = Path(section.rates) if section.rates is not None else None
    try:
        trace_format = section.format or guessed_format(path)
        is_drawn = trace_format is TraceFormat.SERVEGEN
        draw = Draw(rates, seed, config.from_s, config.until_s, section.rate_scale) if is_drawn else None
        changed_ns = path.stat().st_mtime_ns
        return _replay_as_of(path, trace_format, draw, changed_ns, config=config, seed=seed, groups=groups)
    except OSError as error:
        raise ConfigError(f"{path.name} cannot be read: {error.strerror}") from error
    except TraceError as error:
        raise ConfigError(str(error)) from error


@lru_cache(maxsize=8)
def _replay_as_of(
    path: Path,
    trace_format: TraceFormat,
    draw: Draw | None,
    changed_ns: int,
    *,
    config: ReplayConfig,
    seed: int,
    groups: tuple[ReplayGroup, ...],
) -> Replay:
    return Replay(_trace_as_of(path, trace_format, draw, changed_ns), config, seed=seed, groups=groups)


@lru_cache(maxsize=4)
def _trace_as_of(path: Path, trace_format: TraceFormat, draw: Draw | None, _changed_ns: int) -> Trace:
    """Read a trace once for all runs of a process, until the file changes."""
    return read_trace(path, trace_format, draw=draw)


def questions_in(file: str) -> Questions:
    """Read a file of questions. Raises TraceError if it cannot be read."""
    with opened(Path(file)) as lines:
        return parse_questions(lines)


def _rates_in(path: Path) -> Points:
    try:
        with opened(path) as lines:
            return parse_rates(lines)
    except (TraceError, RowFault) as error:
        raise ValueError(f"file: {path.name}: {error}") from error


def _pairs_in(path: Path) -> list[tuple[str, str, str]]:
    try:
        table = parse_round_trips(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"round_trips: {path.name} cannot be read: {error.strerror}") from error
    return [
        (*sorted(pair), f"{round(seconds * 1e6)}us")  # type: ignore[misc]
        for pair, seconds in table.seconds.items()
    ]
