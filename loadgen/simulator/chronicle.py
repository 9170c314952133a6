"""Trace of a run: one line for every event, hashed as it is written, and not kept.

Equal seeds give equal digests.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, assert_never

from gateway.core import events
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, LegRole, RequestProfile
from loadgen.simulator.observers import GatewaySpec

_OfALeg = (
    events.LegEnded
    | events.FirstToken
    | events.LegAccepted
    | events.ResponseStored
    | ordered.StartLeg
    | ordered.StopLeg
    | ordered.TakeBackLeg
)

_LINES_HASHED_AT_ONCE = 512


class Chronicle:
    """Receiver of every line; it keeps none, but passes them on to `on_line`, if given."""

    def __init__(self, on_line: Callable[[str], object] | None = None) -> None:
        self._hash = blake2b(digest_size=16)
        self._lines: list[str] = []
        self._on_line = on_line
        self.events = 0
        """Events handled by gateway cores."""

    def note(self, now_ns: int, text: str) -> None:
        line = f"{now_ns} {text}\n"
        self._lines.append(line)
        if len(self._lines) >= _LINES_HASHED_AT_ONCE:
            self._flush()
        if self._on_line is not None:
            self._on_line(line)

    def on_start(self, spec: GatewaySpec, policy: ResidencyPolicy, core: GatewayCore) -> None:
        """Ignored: the gateway's first events show its start."""

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None:
        self.events += 1
        told = " ".join(map(_effect_in_words, effects))
        self.note(now_ns, f"{gateway_id} {_event_in_words(event)} -> {told}")

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update("".join(self._lines).encode())
        self._lines.clear()


def _event_in_words(event: Event) -> str:
    """Line for an event: its own wording, or else the name of its type."""
    words = _WORDS.get(type(event))
    return type(event).__name__ if words is None else words(event)


def _replicas_in_words(event: events.ReplicasObserved) -> str:
    seen = (f"{o.replica_id}:{o.healthy:d}/{o.running}/{o.waiting}" for o in event.observations)
    return f"replicas {' '.join(seen)}"


def _peers_in_words(event: events.PeersObserved) -> str:
    heard = (f"{o.report.gateway_id}#{o.report.sequence}@{o.generated_ns}" for o in event.observations)
    return f"peers {' '.join(heard)}"


def _forward_in_words(event: events.ForwardArrived) -> str:
    return f"forward {_profile_in_words(event.profile)} of {event.origin_gateway_id} by {event.deadline_ns}"


def _prices_in_words(event: events.PricesChanged) -> str:
    return f"prices {'none' if event.prices is None else event.prices.digest}"


def _named_with_leg(event: events.FirstToken | events.LegAccepted | events.ResponseStored) -> str:
    return f"{type(event).__name__} {_leg_in_words(event)}"


def _named_with_pool(event: events.DecodeHistoryRestored | events.PredictorFitted | events.ArtifactReady) -> str:
    return f"{type(event).__name__} {event.pool}"


def _cache_in_words(event: events.EngineTold) -> str:
    changes = " ".join([f"{each.kind} {len(each.blocks) // 8}" for each in event.changes])
    return f"cache {event.replica_id}{' anew' if event.is_first else ''} {changes}"


def _digest_in_words(event: events.DigestHeard) -> str:
    part = event.part
    return f"digest {event.gateway_id} {part.to_version} +{len(part.added) // 8} -{len(part.removed) // 8}"


_WORDS: dict[type, Callable[[Any], str]] = {
    events.ReplicasObserved: _replicas_in_words,
    events.PeersObserved: _peers_in_words,
    events.RequestArrived: lambda event: f"arrived {_profile_in_words(event.profile)} by {event.deadline_ns}",
    events.ForwardArrived: _forward_in_words,
    events.LegEnded: lambda event: f"ended {_leg_in_words(event)} {event.result} {event.refusal or ''} {event.detail}",
    events.FirstToken: _named_with_leg,
    events.LegAccepted: _named_with_leg,
    events.ResponseStored: _named_with_leg,
    events.RequestAbandoned: lambda event: f"abandoned {event.request_id}",
    events.TargetLost: lambda event: f"lost {event.target} {event.detail}",
    events.ReplicaLeaves: lambda event: f"leaves {event.replica_id} by {event.leave_by_ns}",
    events.PolicyApplied: lambda event: f"policy {event.policy.digest}",
    events.AssignmentApplied: lambda event: f"assignment {event.version}",
    events.ProgressSampled: lambda event: f"progress {event.pool} {sum(each.output_tokens for each in event.progress)}",
    events.DecodeHistoryRestored: _named_with_pool,
    events.PredictorFitted: _named_with_pool,
    events.ArtifactReady: _named_with_pool,
    events.TokensSettled: lambda event: f"settled {event.request_id} {event.tokens}",
    events.TokenBudgetRestored: lambda event: f"{type(event).__name__} {len(event.snapshot.ratios)}",
    events.PricesChanged: _prices_in_words,
    events.DigestHeard: _digest_in_words,
    events.EngineTold: _cache_in_words,
    events.EngineUnheard: lambda event: f"unheard {event.replica_id} {event.reason}",
}
"""Wording by type of event, where the line says more than the type's name."""


def _leg_in_words(of: _OfALeg) -> str:
    """Identification of a leg; the first leg of an attempt is mostly the only one, and its number is omitted."""
    attempt = f"{of.request_id}/{of.attempt}"
    return attempt if of.leg == 1 else f"{attempt}.{of.leg}"


def _profile_in_words(profile: RequestProfile) -> str:
    return f"{profile.request_id} {profile.prompt_bytes} {profile.prefix[-8:].hex()}"


def _effect_in_words(effect: Effect) -> str:
    match effect:
        case ordered.StartLeg():
            decision = effect.decision
            why = f"{decision.reason} {decision.matched_blocks}"
            part = "" if effect.role is LegRole.WHOLE else f" {effect.role}"
            return f"start {_leg_in_words(effect)} {effect.target} {why}{part}"
        case ordered.StopLeg():
            return f"stop {_leg_in_words(effect)}"
        case ordered.TakeBackLeg():
            return f"take back {_leg_in_words(effect)}"
        case ordered.AcceptForward():
            return f"accept {effect.request_id}"
        case ordered.RefuseForward():
            return f"refuse {effect.request_id} {effect.reason}"
        case ordered.EndRequest():
            return f"end {effect.request_id} {effect.outcome}"
        case ordered.RecordShadow():
            return f"shadow {effect.request_id} {effect.target}"
        case ordered.SampleProgress():
            return f"sample {effect.pool}"
        case ordered.PublishLoad():
            return f"publish {effect.report.sequence}"
        case _ as never:
            assert_never(never)
