"""Builders for core tests: short forms of specs, observations, requests and policies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from gateway.core import events
from gateway.core.block_sizes import BLOCKS_MAX
from gateway.core.config import CoreConfig
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.invariants import Checker
from gateway.core.kernel.config import PlacementPolicy
from gateway.core.kernel.effects import Effect, EndRequest, StartLeg
from gateway.core.kernel.regions import KnownRegion, RegionTable
from gateway.core.kernel.residency import ResidencyPolicy, TenantPolicy, processing_rule
from gateway.core.placement.prefix_chain import prefix_chain, prefix_salt
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    GatewayId,
    Hops,
    Jurisdiction,
    LegResult,
    LoadReport,
    ModelCapacity,
    ModelName,
    ModelQueue,
    PeerObservation,
    PeerSpec,
    Place,
    PlaceRule,
    RegionName,
    ReplicaId,
    ReplicaObservation,
    ReplicaSpec,
    RequestId,
    RequestProfile,
    ResidencyStamp,
    TenantName,
)

_Kind = TypeVar("_Kind")

MS = 1_000_000
SECOND = 1_000_000_000
MODEL = ModelName("llama")
TENANT = TenantName("default")

US = Place(RegionName("us-east-1"), Jurisdiction("US"))
EU = Place(RegionName("eu-west-1"), Jurisdiction("EU"))
AP = Place(RegionName("ap-northeast-1"), Jurisdiction("JP"))
LAYERED = PlacementPolicy.PREFIX
"""Policy that prefers the own region and uses no target with a pending request; for tests of that behaviour alone."""
BOTH = (PlacementPolicy.COST, PlacementPolicy.PREFIX)
"""Default policy and the paper's policy, for promises that hold under any policy."""
ANYWHERE = PlaceRule(jurisdictions=frozenset({US.jurisdiction, EU.jurisdiction, AP.jurisdiction}))


LOOPBACK_RANGES = ("127.0.0.0/8", "10.0.0.0/8", "localhost")
"""Address ranges of the tests' engines, whatever region they stand in."""


def table(*places: Place, ranges: tuple[str, ...] = LOOPBACK_RANGES) -> RegionTable:
    """Operators' table with these regions."""
    return RegionTable({each.region: KnownRegion(each.jurisdiction, ranges) for each in places})


REGIONS = table(US, EU, AP)


def regions_document(*places: Place, ranges: tuple[str, ...] = LOOPBACK_RANGES) -> dict[str, object]:
    """Table of regions, as a file has it."""
    return {
        each.region: {"jurisdiction": str(each.jurisdiction), "replicas": list(ranges)}
        for each in places or (US, EU, AP)
    }


def rule(*places: Place) -> PlaceRule:
    return PlaceRule(regions=frozenset(place.region for place in places))


def policy(
    place: Place,
    process: PlaceRule = ANYWHERE,
    accept: PlaceRule = ANYWHERE,
    tenants: dict[TenantName, TenantPolicy] | None = None,
) -> ResidencyPolicy:
    return ResidencyPolicy(place, process, accept, tenants or {}, digest=f"policy-of-{place.region}")


def stamp_of(policy: ResidencyPolicy, tenant: TenantName) -> ResidencyStamp:
    """Stamp that a region under this policy puts on its tenant's requests."""
    return ResidencyStamp(policy.place, tenant, processing_rule(policy, tenant), policy.digest)


def profile(
    request_id: str,
    *,
    prompt: str = "hello",
    model: ModelName = MODEL,
    tenant: TenantName = TENANT,
    session: str = "",
) -> RequestProfile:
    chain, prompt_bytes = prefix_chain(
        prefix_salt(model, tenant, ""), [prompt.encode()], block_bytes=16, blocks_max=BLOCKS_MAX
    )
    return RequestProfile(
        RequestId(request_id), model, tenant, prompt_bytes, chain, 16, session_key=session or request_id, stream=True
    )


ONE_HOP = Hops(0, 1)


def forward(
    request_id: str,
    *,
    origin: str = "gw-eu",
    origin_place: Place = EU,
    allowed: object = ANYWHERE,
    hops: Hops = ONE_HOP,
    deadline_ns: int = 60 * SECOND,
) -> events.ForwardArrived:
    stamp = ResidencyStamp(origin_place, TenantName("default"), allowed, "digest")  # type: ignore[arg-type]
    return events.ForwardArrived(profile(request_id), deadline_ns, GatewayId(origin), hops, stamp)


def replica_spec(name: str, place: Place = US, models: Iterable[ModelName] = (MODEL,)) -> ReplicaSpec:
    return ReplicaSpec(ReplicaId(name), place, tuple(models))


def peer_spec(name: str, place: Place) -> PeerSpec:
    return PeerSpec(GatewayId(name), place)


@dataclass
class Desk:
    """One core under test, with a clock that only the test moves and a checker that runs after every event."""

    core: GatewayCore
    now_ns: int = 0
    effects: list[Effect] = field(default_factory=list)
    """Effects of all events so far."""

    def __post_init__(self) -> None:
        self.checker = Checker(self.core)
        self._sequence = 0

    def tell(self, event: Event) -> list[Effect]:
        effects = self.core.handle(event, self.now_ns)
        violations = self.checker.after(event, effects, self.now_ns)
        assert not violations, violations
        self.effects += effects
        return effects

    def wait(self, duration_ns: int) -> list[Effect]:
        """Let time pass, waking the core whenever it asked to be woken."""
        end_ns = self.now_ns + duration_ns
        seen: list[Effect] = []
        while (wake_ns := self.core.next_wakeup_ns()) is not None and wake_ns <= end_ns:
            self.now_ns = max(wake_ns, self.now_ns)
            seen += self.tell(events.TimePassed())
        self.now_ns = end_ns
        seen += self.tell(events.TimePassed())
        return seen

    def probe(
        self,
        *names: str,
        waiting: int = 0,
        running: int = 0,
        healthy: bool = True,
        kv_tokens: int = 0,
        kv_usage: float = 0.0,
    ) -> list[Effect]:
        """Observe replicas at the current time; all of them if none is named."""
        ids = names or tuple(state.spec.replica_id for state in self.core.replicas)
        observations = tuple(
            ReplicaObservation(
                ReplicaId(name),
                self.now_ns,
                healthy,
                running=running,
                waiting=waiting,
                kv_usage=kv_usage,
                kv_tokens=kv_tokens,
            )
            for name in ids
        )
        return self.tell(events.ReplicasObserved(observations))

    def hear(
        self,
        name: str,
        place: Place,
        *,
        available: int = 1,
        queue: int = 0,
        appending: int = 0,
        model: ModelName = MODEL,
        rtt_ms: int = 10,
        accepting: bool = True,
        room: int | None = None,
        release_ns: int = 0,
        identity: str = "",
        yielding: int = 0,
        spare: int | None = None,
    ) -> list[Effect]:
        """Report a heartbeat of a peer, without age. `room` defaults to one request per free replica, and `spare` to
        all of these if there is room."""
        self._sequence += 1
        report = LoadReport(
            GatewayId(name),
            place,
            self._sequence,
            accepting,
            1,
            "digest",
            (
                ModelCapacity(
                    model,
                    DEFAULT_POOL,
                    place,
                    max(available, 1),
                    available,
                    room=available if room is None else room,
                    release_ns=release_ns,
                    identity=identity,
                    yielding=yielding,
                    spare=available * (room is None or room > 0) if spare is None else spare,
                ),
            ),
            (ModelQueue(model, queue, None, appending),),
        )
        rtt_ns = rtt_ms * MS
        return self.tell(events.PeersObserved((PeerObservation(report, self.now_ns, self.now_ns, rtt_ns, rtt_ns),)))

    def ask(self, request_id: str, *, deadline_ns: int = 600 * SECOND, **details: str) -> list[Effect]:
        """Have a client's request arrive."""
        return self.tell(events.RequestArrived(profile(request_id, **details), self.now_ns + deadline_ns))  # type: ignore[arg-type]

    def first_token(self, request_id: str, attempt: int = 1) -> list[Effect]:
        return self.tell(events.FirstToken(RequestId(request_id), attempt, 1))

    def finish(
        self, request_id: str, result: LegResult = LegResult.COMPLETED, attempt: int = 1, **more: object
    ) -> list[Effect]:
        return self.tell(events.LegEnded(RequestId(request_id), attempt, 1, result, **more))  # type: ignore[arg-type]


def desk(
    place: Place = US,
    *,
    replicas: Iterable[ReplicaSpec] | int = 2,
    peers: Iterable[PeerSpec] = (),
    config: CoreConfig | None = None,
    own_policy: ResidencyPolicy | None = None,
    probed: bool = True,
    placement: PlacementPolicy | None = None,
    gateway_id: str = "",
) -> Desk:
    """Configured core, whose replicas `r0`, `r1`, … have been probed idle unless `probed` is False. `placement`: the
    policy that the test is about; None keeps the config's."""
    specs = [replica_spec(f"r{i}", place) for i in range(replicas)] if isinstance(replicas, int) else list(replicas)
    made = Desk(GatewayCore(GatewayId(gateway_id or f"gw-{place.region}"), place, seed=1))
    config = config or CoreConfig()
    made.tell(events.ConfigApplied(config if placement is None else under(placement, config)))
    made.tell(events.PolicyApplied(own_policy or policy(place)))
    made.tell(events.AssignmentApplied(1, tuple(specs), tuple(peers)))
    if probed and specs:
        made.probe()
    return made


def under(placement: PlacementPolicy, config: CoreConfig | None = None) -> CoreConfig:
    """Config with this placement policy."""
    config = config or CoreConfig()
    return replace(config, placement=replace(config.placement, policy=placement))


def unresumed(config: CoreConfig | None = None) -> CoreConfig:
    """Config in which a broken answer is not resumed."""
    config = config or CoreConfig()
    return replace(config, resume=replace(config.resume, enabled=False))


def occupy(one: Desk, *names: str) -> None:
    """Keep these replicas, or all, from taking requests. One pending request is enough under policies that place only
    on available replicas. A policy that weighs costs may still choose a busy replica if that is cheapest, so under such
    a policy the replicas are probed unhealthy."""
    if one.core.placer.takes_full_replicas:
        one.probe(*names, healthy=False)
    else:
        one.probe(*names, waiting=1)


def of_kind(kind: type[_Kind], among: Iterable[object]) -> list[_Kind]:
    return [each for each in among if isinstance(each, kind)]


def started(effects: Iterable[Effect]) -> list[str]:
    """Targets of the legs that were ordered, in order."""
    return [leg.target.id for leg in of_kind(StartLeg, effects)]


def ended(effects: Iterable[Effect]) -> list[tuple[str, str]]:
    """Request and outcome of the requests that ended, in order."""
    return [(end.request_id, end.outcome.value) for end in of_kind(EndRequest, effects)]


def no_leg_beside(leg: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Leg starter for an owner whose core orders one leg at a time."""
    leg.close()
    raise AssertionError("a leg was ordered beside another one")


EU_PEER = peer_spec("gw-eu", EU)


def busy_desk(placement: PlacementPolicy, **more: object) -> Desk:
    """Gateway in the US with two replicas that take no request, and an idle peer in the EU."""
    made = desk(replicas=2, peers=[EU_PEER], placement=placement, **more)  # type: ignore[arg-type]
    occupy(made)
    made.hear("gw-eu", EU)
    return made


LONG = 1_000
"""Words of a prompt that a replica needs a hundred milliseconds to read at the rate assumed at first."""


def words(name: str, count: int = LONG) -> str:
    """Prompt that shares its beginning with no other prompt."""
    return f"{name:9} " * count


def reading(**more: object) -> Desk:
    """One replica that reads `first`; `waits` is as long and waits."""
    one = desk(replicas=1, **more)  # type: ignore[arg-type]
    assert started(one.ask("first", prompt=words("first"))) == ["r0"]
    one.ask("waits", prompt=words("waits"))
    return one


def home_of(one: Desk, name: str = "waits") -> str | None:
    held = one.core.requests[RequestId(name)].held
    return None if held is None else one.core.replicas.at(held.slot).spec.replica_id
