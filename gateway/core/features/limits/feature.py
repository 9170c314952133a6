"""Limits of tenants, kept jointly by gateways that share no store: each has a share of a limit, computed from the
demand that all of them state in their heartbeats. The module sends nothing, and asks no other gateway while a request
waits.

A forwarded request counts at its origin. Shares are computed once a round, for tenants with demand; a request costs a
map look-up and a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.core.allowance import TRY_AGAIN_NS, LimitAllowance, LimitKind
from gateway.core.config import all_of
from gateway.core.features.limits.config import LimitScope, SharesConfig
from gateway.core.features.limits.shares import floor_of
from gateway.core.features.limits.tenant_meter import Divided, TenantMeter, demand_of
from gateway.core.kernel.config import KernelConfig, ObservationConfig
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.events import FeatureEvent, ForwardArrived, RequestArrived, TokensSettled
from gateway.core.kernel.feature import Feature
from gateway.core.kernel.kernel import Kernel
from gateway.core.kernel.peers import PeerState
from gateway.core.kernel.requests import Phase, Rejected, RequestState
from gateway.core.kernel.residency import ResidencyPolicy, processing_rule
from gateway.core.kernel.timers import Timer, TimerKind
from gateway.core.tenant_config import DEFAULT_TENANT, TenantConfig
from gateway.core.vocabulary import (
    GatewayId,
    Outcome,
    PeerObservation,
    RequestId,
    RequestProfile,
    TenantName,
    TenantUse,
)

_MINUTE_NS: Final = 60_000_000_000
_BYTES_PER_TOKEN: Final = 4
_FORGOTTEN_NS: Final = 2 * _MINUTE_NS
"""Time after which an idle tenant without a debt is forgotten; its buckets are full by then anyway."""
_ROUND_MAX: Final = 512
"""Tenants with demand per publish interval of a round's period: with more, rounds are that many times rarer."""
_METER: Final = "limits"
"""Name of the part of a request that is its tenant's meter."""
_TIMER: Final = "limits"
"""Name of the timer of rounds."""
_NO_USES: Final[dict[TenantName, TenantUse]] = {}


def meter_of_request(request: RequestState) -> TenantMeter | None:
    """Meter that counts a request as running; None: its tenant has no limits, or it is a forward."""
    meter = None if request.parts is None else request.parts.get(_METER)
    return meter if isinstance(meter, TenantMeter) else None


@dataclass(slots=True)
class _Divider:
    """Other gateways that keep a tenant's limits together with this one, and what was heard from them."""

    at: int
    """Rank of this gateway among all of them, ordered by id."""
    others: list[dict[TenantName, TenantUse]]
    """Uses that each of the others reports, ordered by id; empty for a gateway that has been silent for too long."""
    is_unsure: bool
    """True while one of them has not been heard yet and may still be."""
    heard_ns: int
    """Time before which everything this gateway told has been taken in by all of them, and answered with their use
    since."""


class TenantLimits(Feature):
    """Limits of all tenants at one gateway, applied to clients' requests. A forward counts where it arrived first."""

    def __init__(self, core: Kernel) -> None:
        self._core = core
        self._policy = core.policy
        self.told: tuple[TenantUse, ...] = ()
        """Tenants' use for the next heartbeat."""
        self.version = 0
        """Version of what is told."""
        self.untold = 0
        """Tenants with demand that are left out of heartbeats."""
        self._gateway_id, self._place = core.gateway_id, core.place
        self._peers, self._timers = core.peers, core.timers
        self._timer = Timer(TimerKind.FEATURE, _TIMER)
        self._observation = ObservationConfig()
        self._sharing = SharesConfig()
        self._tenants: dict[TenantName, TenantConfig] = {}
        self._default: TenantConfig | None = None
        self._is_on = False
        """True if some tenant has limits."""
        self._entered: TenantMeter | None = None
        """Meter of the request that is being admitted."""
        self._meters: dict[TenantName, TenantMeter] = {}
        """Meters by tenant, the tenant that became active last at the end."""
        self._active: dict[TenantName, TenantMeter] = {}
        """Meters of the tenants with demand."""
        self._charged: dict[RequestId, tuple[TenantMeter, int]] = {}
        """Tokens reserved for requests whose token count has not been settled; each is settled once."""
        self._known_ns: dict[GatewayId, int] = {}
        """Time since which each peer has been known."""
        self._heard: dict[GatewayId, tuple[tuple[TenantUse, ...], dict[TenantName, TenantUse]]] = {}
        """Last uses reported by each peer, also by tenant."""

    def is_on(self) -> bool:
        return self._is_on

    # Changes

    def take_in(self, event: FeatureEvent, now_ns: int, /) -> bool:
        if not isinstance(event, TokensSettled):
            return False
        self._settle(event.request_id, event.tokens, now_ns)
        return True

    def configure(self, config: KernelConfig, now_ns: int, /) -> None:
        settings = all_of(config)
        self._observation, self._sharing = settings.observation, settings.shares
        self._tenants = {name: each for name, each in settings.tenants.items() if name != DEFAULT_TENANT}
        self._default = settings.tenants.get(DEFAULT_TENANT)
        self._is_on = any(each.has_limits for each in settings.tenants.values())
        for tenant, meter in list(self._meters.items()):
            followed = self._config_of(tenant)
            if followed is None:
                del self._meters[tenant]
                self._active.pop(tenant, None)
            elif followed != meter.config:
                meter.follow(followed)
                self._active[tenant] = meter
        if self._active:
            self.round(now_ns)

    def apply_policy(self, policy: ResidencyPolicy, /) -> None:
        self._policy = policy

    def wake(self, timer: str, now_ns: int, /) -> None:
        if timer == _TIMER:
            self.round(now_ns)

    def assigned(self, now_ns: int, /) -> None:
        """Take in a new set of peers."""
        known, self._known_ns = self._known_ns, {}
        for state in self._peers:
            gateway_id = state.spec.gateway_id
            self._known_ns[gateway_id] = known.get(gateway_id, now_ns)
        self._heard = {each: heard for each, heard in self._heard.items() if each in self._known_ns}

    def reject(self, profile: RequestProfile, now_ns: int, /) -> Rejected | None:
        """Reject a request beyond its tenant's limits; any other is counted from here on."""
        assert self._entered is None, "the request before was admitted or rejected"
        meter = self.enter(profile, now_ns)
        if isinstance(meter, Rejected):
            return meter
        self._entered = meter
        return None

    def admitted(self, request: RequestState, event: RequestArrived | ForwardArrived, now_ns: int, /) -> None:  # noqa: ARG002
        meter, self._entered = self._entered, None
        if meter is not None:
            request.keep(_METER, meter)

    def ends(self, request: RequestState, end: EndRequest, now_ns: int, /) -> None:
        if request.parts is None:
            return
        meter = meter_of_request(request)
        if meter is not None:
            was_turned_away = not request.attempts and end.outcome.startswith("rejected_")
            meter.leave(now_ns, was_turned_away=was_turned_away)
            end.is_charged = request.request_id in self._charged

    def enter(self, profile: RequestProfile, now_ns: int) -> TenantMeter | Rejected | None:
        """Admit a client's request and return its tenant's meter, which counts it as running and must be told of its
        end. None: the tenant has no limits. Rejected: the request is rejected."""
        if not self._is_on or profile.is_control:
            return None
        config = self._config_of(profile.tenant)
        if config is None:
            return None
        meter = self._active.get(profile.tenant) or self._begin(profile.tenant, config, now_ns)
        meter.asked_ns = now_ns
        tokens = 0 if meter.tokens is None else self._tokens_of(profile)
        exceeded = self._exceeded(meter, tokens, now_ns)
        if exceeded is not None:
            return exceeded
        meter.running += 1
        if meter.concurrency is not None:
            meter.concurrency.ask_at_least(meter.running + meter.refused)
        if meter.request_bucket is not None:
            meter.request_bucket.take(1, now_ns)
        if meter.token_bucket is not None:
            charged = min(tokens, meter.token_bucket.per_minute)
            meter.token_bucket.take(charged, now_ns)
            meter.set_aside += charged
            self._charged[profile.request_id] = meter, charged
        return meter

    def _settle(self, request_id: RequestId, tokens: int, now_ns: int) -> None:
        """Replace the tokens reserved for a request by those it used."""
        charged = self._charged.pop(request_id, None)
        if charged is None:
            return
        meter, taken = charged
        meter.set_aside -= taken
        if meter.token_bucket is None or meter.tokens is None:
            return
        if tokens > taken:
            meter.token_bucket.take(tokens - taken, now_ns)
        else:
            meter.token_bucket.give_back(taken - tokens, now_ns)
        meter.tokens.ask(tokens - taken)

    def round(self, now_ns: int) -> None:
        """Compute shares anew, and what is told of this gateway's use."""
        interval_ns = self._observation.publish_interval_ns
        dividers: dict[tuple[LimitScope, TenantName | None], _Divider | None] = {}
        for tenant, meter in list(self._active.items()):
            meter.turn(now_ns, self._sharing.demand_window_ns)
            if meter.is_idle:
                del self._active[tenant]
            else:
                self._divide(meter, self._divider_of(meter, dividers, now_ns), now_ns)
        self._forget_idle(now_ns)
        self._tell()
        if self._active:
            self._timers.set(self._timer, now_ns + interval_ns * (1 + len(self._active) // _ROUND_MAX))
        else:
            self._timers.cancel(self._timer)

    # Queries

    def told_version(self) -> int:
        return self.version

    def uses(self) -> tuple[TenantUse, ...]:
        return self.told

    def __iter__(self) -> Iterator[TenantMeter]:
        """Meters of the tenants with demand."""
        return iter(self._active.values())

    def __len__(self) -> int:
        return len(self._meters)

    def meter_of(self, tenant: TenantName) -> TenantMeter | None:
        """Meter of a tenant; None: it has no limits, or has been idle for long."""
        return self._meters.get(tenant)

    def allowances(self, tenant: TenantName, now_ns: int) -> list[LimitAllowance]:
        """Remainders of the tenant's requests and tokens per minute at this gateway; empty without such limits."""
        meter = self._meters.get(tenant) if self._is_on else None
        if meter is None:
            return []
        pairs = (
            (LimitKind.REQUESTS, meter.requests, meter.request_bucket),
            (LimitKind.TOKENS, meter.tokens, meter.token_bucket),
        )
        return [
            LimitAllowance(kind, limit.limit, bucket.remaining(now_ns), bucket.reset_ns(now_ns))
            for kind, limit, bucket in pairs
            if limit is not None and bucket is not None
        ]

    def violations(self) -> list[tuple[str, str]]:
        """Check that what a tenant has under way are its requests that have not ended, and that forwards do not
        count."""
        under_way: dict[int, int] = {}
        found: list[tuple[str, str]] = []
        for request in self._core.requests.values():
            meter = meter_of_request(request)
            if meter is not None and request.phase is not Phase.ENDED:
                under_way[id(meter)] = under_way.get(id(meter), 0) + 1
                if request.origin_gateway_id is not None:
                    found.append(("a forward counts where it came in", request.request_id))
        for meter in self:
            counted = under_way.get(id(meter), 0)
            if meter.running != counted:
                told = f"{meter.tenant}: {meter.running} counted, {counted} under way"
                found.append(("what a tenant has under way are its requests that have not ended", told))
        return found

    # Inside

    def _config_of(self, tenant: TenantName) -> TenantConfig | None:
        config = self._tenants.get(tenant, self._default)
        return config if config is not None and config.has_limits else None

    def _begin(self, tenant: TenantName, config: TenantConfig, now_ns: int) -> TenantMeter:
        """Start metering a tenant that has been idle. What other gateways report at this moment decides its share at
        once: all of them left this gateway its part."""
        meter = self._meters.pop(tenant, None)
        if meter is None:
            if len(self._meters) >= self._sharing.tenants_max:
                self._forget_one()
            meter = TenantMeter(tenant, config, now_ns)
        self._meters[tenant] = self._active[tenant] = meter
        meter.turn(now_ns, self._sharing.demand_window_ns)
        for _, limit in meter.limits():
            limit.alone()
        self._divide(meter, self._divider_of(meter, {}, now_ns), now_ns)
        self._timers.set_earlier(self._timer, now_ns + self._observation.publish_interval_ns)
        return meter

    def _exceeded(self, meter: TenantMeter, tokens: int, now_ns: int) -> Rejected | None:
        """Reason to reject a request by its tenant's limits, or None. A rejected request counts as demand all the same,
        by which this gateway's share grows."""
        concurrency, requests, tokens_limit = meter.concurrency, meter.requests, meter.tokens
        if requests is not None:
            requests.ask(1)
        if tokens_limit is not None:
            tokens_limit.ask(tokens)
        if concurrency is not None and meter.running >= concurrency.share:
            meter.refused += 1
            concurrency.ask_at_least(meter.running + meter.refused)
            told = f"{meter.running} requests are under way{_of(concurrency)}"
            return Rejected(Outcome.REJECTED_TENANT_CONCURRENCY, told, self._growth_ns(concurrency))
        if requests is not None and meter.request_bucket is not None:
            wait_ns = meter.request_bucket.wait_ns(1, now_ns)
            if wait_ns:
                told = f"the requests of this minute are used up{_of(requests)}"
                return Rejected(Outcome.REJECTED_TENANT_REQUEST_RATE, told, self._until(wait_ns, requests))
        if tokens_limit is not None and meter.token_bucket is not None:
            wait_ns = meter.token_bucket.wait_ns(tokens, now_ns)
            if wait_ns:
                if wait_ns > 0:  # reservations of running requests may be refunded at any time
                    at_best_ns = meter.token_bucket.wait_ns(tokens, now_ns, meter.set_aside)
                    wait_ns = min(wait_ns, max(TRY_AGAIN_NS, at_best_ns))
                told = f"fewer than {tokens} tokens are left of this minute's{_of(tokens_limit)}"
                return Rejected(Outcome.REJECTED_TENANT_TOKEN_RATE, told, self._until(wait_ns, tokens_limit))
        return None

    def _until(self, wait_ns: int, limit: Divided) -> int:
        """Retry-after for a bucket. A negative wait means that this gateway's share is 0 and has to grow first."""
        return self._growth_ns(limit) if wait_ns < 0 else wait_ns

    def _growth_ns(self, limit: Divided) -> int:
        """Time after which the share may have grown: demand is told within a publish interval, and every gateway
        answers within a keep-alive. Where the share is the whole limit, a fixed time to try again."""
        if limit.share >= limit.limit:
            return TRY_AGAIN_NS
        rtts_ns = [state.observation.rtt_p99_ns for state in self._peers if state.observation is not None]
        observation = self._observation
        return observation.keep_alive_ns + 3 * observation.publish_interval_ns + max(rtts_ns, default=0)

    def _tokens_of(self, profile: RequestProfile) -> int:
        output_max = profile.output_tokens_max
        output = self._sharing.output_tokens_reserved if output_max is None else max(output_max, 0)
        return -(-profile.prompt_bytes // _BYTES_PER_TOKEN) + output

    def _divide(self, meter: TenantMeter, divider: _Divider | None, now_ns: int) -> None:
        shares = self._sharing
        if divider is None:
            for _, limit in meter.limits():
                limit.alone()
            meter.resize(now_ns)
            return
        count = len(divider.others) + 1
        heard = [each.get(meter.tenant) for each in divider.others]
        own = meter.use(shares.demand_window_ns)
        offset = _number_of(meter.tenant)
        for kind, limit in meter.limits():
            floors = [
                floor_of(limit.limit, count, (rank + offset) % count, shares.floor_share) for rank in range(count)
            ]
            if divider.is_unsure:
                limit.wait(floors[divider.at], now_ns)
                continue
            demands = [0 if use is None else demand_of(use, kind) for use in heard]
            demands.insert(divider.at, demand_of(own, kind))
            limit.divide(demands, floors, divider.at, now_ns, divider.heard_ns)
        if meter.concurrency is not None and not divider.is_unsure:
            taken = sum([use.running for use in heard if use is not None])
            meter.concurrency.cap(meter.concurrency.limit - taken)
        meter.resize(now_ns)

    def _divider_of(
        self,
        meter: TenantMeter,
        known: dict[tuple[LimitScope, TenantName | None], _Divider | None],
        now_ns: int,
    ) -> _Divider | None:
        """Gateways that divide the tenant's limits; None: this gateway alone. `known`: those found in this round.
        Tenants without a policy of their own have the same."""
        scope = meter.config.limit_scope
        if scope is LimitScope.GATEWAY:
            return None
        key = scope, meter.tenant if meter.tenant in self._policy.tenants else None
        if key not in known:
            known[key] = self._make_divider(scope, meter.tenant, now_ns)
        return known[key]

    def _make_divider(self, scope: LimitScope, tenant: TenantName, now_ns: int) -> _Divider | None:
        """Divider of a tenant's limits among the gateways in places that may know of the tenant; None without any."""
        rule = processing_rule(self._policy, tenant)
        members = sorted(
            [
                (state.spec.gateway_id, state)
                for state in self._peers
                if (scope is LimitScope.MESH or state.spec.place.region == self._place.region)
                and rule.allows(state.spec.place)
            ],
            key=lambda each: each[0],
        )
        if not members:
            return None
        at = sum([gateway_id < self._gateway_id for gateway_id, _ in members])
        others = [self._uses_of(state, now_ns) for _, state in members]
        is_unsure = any(self._may_still_be_heard(state, now_ns) for _, state in members)
        heard_ns = min([self._taken_in_ns(state, now_ns) for _, state in members])
        return _Divider(at, others, is_unsure, heard_ns)

    def _taken_in_ns(self, state: PeerState, now_ns: int) -> int:
        """Time before which the peer has taken in what this gateway told: its last report, less half a round trip and
        two intervals. A silent peer is not waited for once nothing is reserved for it."""
        observation = state.observation
        if observation is None or self._is_silent(observation, now_ns):
            return now_ns
        interval_ns = self._observation.publish_interval_ns
        return observation.generated_ns - observation.rtt_p99_ns // 2 - 2 * interval_ns

    def _is_silent(self, observation: PeerObservation, now_ns: int) -> bool:
        return now_ns - observation.heard_ns > self._sharing.reserved_ns

    def _uses_of(self, state: PeerState, now_ns: int) -> dict[TenantName, TenantUse]:
        observation = state.observation
        if observation is None or self._is_silent(observation, now_ns):
            return _NO_USES
        uses = observation.report.uses
        if not uses:
            return _NO_USES
        heard = self._heard.get(state.spec.gateway_id)
        if heard is None or heard[0] is not uses:
            heard = uses, {each.tenant: each for each in uses}
            self._heard[state.spec.gateway_id] = heard
        return heard[1]

    def _may_still_be_heard(self, state: PeerState, now_ns: int) -> bool:
        """True while a peer that has not been heard may only be late, since it or this gateway has just started."""
        if state.observation is not None:
            return False
        waited_ns = now_ns - self._known_ns.get(state.spec.gateway_id, now_ns)
        return waited_ns < 3 * self._observation.keep_alive_ns

    def _tell(self) -> None:
        """Collect the use of tenants that share limits with other gateways, for heartbeats."""
        window_ns = self._sharing.demand_window_ns
        meters = [each for each in self._active.values() if each.config.limit_scope is not LimitScope.GATEWAY]
        told_max = self._sharing.told_max
        self.untold = max(0, len(meters) - told_max)
        if self.untold:
            meters.sort(key=lambda each: (-each.pressure, each.tenant))
        policy = self._policy
        told = tuple([each.use(window_ns, processing_rule(policy, each.tenant)) for each in meters[:told_max]])
        if told != self.told:
            self.told = told
            self.version += 1

    def _forget_idle(self, now_ns: int) -> None:
        """Forget tenants that have been idle for long. A tenant in debt is kept: a debt is not forgotten by waiting."""
        idle: list[TenantName] = []
        for tenant, meter in self._meters.items():
            if now_ns - meter.asked_ns < _FORGOTTEN_NS:
                break
            if tenant not in self._active and not meter.is_in_debt(now_ns):
                idle.append(tenant)
        for tenant in idle:
            del self._meters[tenant]

    def _forget_one(self) -> None:
        """Forget the tenant that has been idle for longest, or else the oldest without a running request."""
        idle = next((each for each in self._meters if each not in self._active), None)
        if idle is None:
            idle = next((each.tenant for each in self._meters.values() if not each.running), None)
        if idle is not None:
            del self._meters[idle]
            self._active.pop(idle, None)


def _number_of(tenant: TenantName) -> int:
    """Number of a tenant, the same at every gateway, by which the gateway ranked first differs between tenants."""
    return sum(tenant.encode())


def _of(limit: Divided) -> str:
    if limit.share == limit.limit:
        return f" (limit {limit.limit})"
    return f" (limit {limit.limit}, of which this gateway's share is {limit.share} at present)"


def limits_of(core: Kernel) -> TenantLimits:
    """Feature of a core that was made with it."""
    return next(each for each in core.features if isinstance(each, TenantLimits))
