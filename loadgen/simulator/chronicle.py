"""Trace of a run: one line for every event, hashed as it is written, and not kept.

Equal seeds give equal digests.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import assert_never

from gateway.core import effects as ordered
from gateway.core import events
from gateway.core.effects import Effect
from gateway.core.events import Event
from gateway.core.gateway_core import GatewayCore
from gateway.core.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, LegRole, RequestProfile
from loadgen.simulator.observers import GatewaySpec

_OfALeg = (
    events.LegEnded
    | events.FirstToken
    | events.LegAccepted
    | events.ResponseStored
    | ordered.StartLeg
    | ordered.StopLeg
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


def _event_in_words(event: Event) -> str:  # noqa: PLR0911 - one line for each event
    match event:
        case events.ReplicasObserved():
            seen = (f"{o.replica_id}:{o.healthy:d}/{o.running}/{o.waiting}" for o in event.observations)
            return f"replicas {' '.join(seen)}"
        case events.PeersObserved():
            heard = (f"{o.report.gateway_id}#{o.report.sequence}@{o.generated_ns}" for o in event.observations)
            return f"peers {' '.join(heard)}"
        case events.RequestArrived():
            return f"arrived {_profile_in_words(event.profile)} by {event.deadline_ns}"
        case events.ForwardArrived():
            return f"forward {_profile_in_words(event.profile)} of {event.origin_gateway_id} by {event.deadline_ns}"
        case events.LegEnded():
            return f"ended {_leg_in_words(event)} {event.result} {event.refusal or ''} {event.detail}"
        case events.FirstToken() | events.LegAccepted() | events.ResponseStored():
            return f"{type(event).__name__} {_leg_in_words(event)}"
        case events.RequestAbandoned():
            return f"abandoned {event.request_id}"
        case events.TargetLost():
            return f"lost {event.target} {event.detail}"
        case events.PolicyApplied():
            return f"policy {event.policy.digest}"
        case events.AssignmentApplied():
            return f"assignment {event.version}"
        case events.ProgressSampled():
            return f"progress {event.pool} {sum(each.output_tokens for each in event.progress)}"
        case events.DecodeHistoryRestored() | events.PredictorFitted() | events.ArtifactReady():
            return f"{type(event).__name__} {event.pool}"
        case events.TokensSettled():
            return f"settled {event.request_id} {event.tokens}"
        case events.TokenBudgetRestored():
            return f"{type(event).__name__} {len(event.snapshot.ratios)}"
        case events.PricesChanged():
            return f"prices {'none' if event.prices is None else event.prices.digest}"
        case (
            events.TimePassed()
            | events.ConfigApplied()
            | events.DrainRequested()
            | events.DrainLifted()
            | events.LockdownChanged()
        ):
            return type(event).__name__
        case _ as never:
            assert_never(never)


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
