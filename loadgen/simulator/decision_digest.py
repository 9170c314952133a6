"""Digest of what gateways decide and what clients get: arrivals, placements with their costs, legs, outcomes, records.

It names neither classes nor events that only pass time, so it stays equal while the core's inside is rearranged. The
chronicle's digest says that two runs of one version are the same; this one says that two versions behave alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b

from gateway.core import events
from gateway.core.events import Event
from gateway.core.features.prices.in_force import CARBON, FIRST_TOKEN, MONEY
from gateway.core.features.resume.counts import NO_RESUMES, resumes_in
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel import effects as ordered
from gateway.core.kernel.effects import Effect
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import Candidate, Decision, GatewayId, Notes, RequestProfile
from loadgen.report import RequestReport
from loadgen.simulator.observers import GatewaySpec

_LINES_HASHED_AT_ONCE = 512


class DecisionDigest:
    """Observer of simulated gateways. Lines are hashed and not kept; `on_line` receives each one, for a comparison."""

    def __init__(self, on_line: Callable[[str], object] | None = None) -> None:
        self._hash = blake2b(digest_size=16)
        self._lines: list[str] = []
        self._on_line = on_line

    def on_start(self, spec: GatewaySpec, policy: ResidencyPolicy, core: GatewayCore) -> None:
        """A gateway's start is no decision."""

    def on_step(self, now_ns: int, gateway_id: GatewayId, event: Event, effects: list[Effect]) -> None:
        """Hash one event of a request, and the orders that any event led to."""
        told = input_line(event)
        if told:
            self._tell(f"{now_ns} {gateway_id} {told}")
        for effect in effects:
            if told := order_line(effect):
                self._tell(f"{now_ns} {gateway_id} {told}")

    def digest(self, records: Iterable[RequestReport] = ()) -> str:
        """Hexadecimal digest of all lines, and of what clients recorded. Called once, at the end of a run."""
        for record in records:
            self._tell(f"record {record_line(record)}")
        self._flush()
        return self._hash.hexdigest()

    def _tell(self, line: str) -> None:
        self._lines.append(line + "\n")
        if len(self._lines) >= _LINES_HASHED_AT_ONCE:
            self._flush()
        if self._on_line is not None:
            self._on_line(line)

    def _flush(self) -> None:
        self._hash.update("".join(self._lines).encode())
        self._lines.clear()


def input_line(event: Event) -> str:
    """One request's event in stable words; empty for an event that concerns no request."""
    match event:
        case events.RequestArrived():
            return f"arrived {_profile(event.profile)} {event.deadline_ns}"
        case events.ForwardArrived():
            hops = f"{event.hops.in_region}/{event.hops.cross_region}"
            left = _count(event.notes)
            origin = f"{event.origin_gateway_id} {hops} {event.stamp.policy_digest}"
            return f"forward {_profile(event.profile)} {event.deadline_ns} {origin} {left}"
        case events.RequestAbandoned():
            return f"abandoned {event.request_id}"
        case events.FirstToken():
            return f"first_token {_leg(event)} {event.is_sent}"
        case events.LegEnded():
            tokens = f"{event.prompt_tokens} {event.output_tokens}"
            told = f"{event.result} {event.refusal} {tokens} {event.has_reached} {event.is_final}"
            return f"leg_ended {_leg(event)} {told} {event.remainder is not None} {event.detail}"
        case events.ResponseStored():
            return f"response_stored {_leg(event)} {event.key}"
        case events.TargetLost():
            return f"target_lost {event.target}"
        case _:
            return ""


def order_line(effect: Effect) -> str:
    """One order in stable words; empty for an order that concerns no request."""
    match effect:
        case ordered.StartLeg():
            hops = effect.hops and f"{effect.hops.in_region}/{effect.hops.cross_region}"
            part = f"{effect.connector} {effect.prefill} {effect.pool}"
            resume = f"{effect.keeps_answer} {effect.segment} {_count(effect.notes)}"
            other = f"{effect.budget_tokens} {effect.may_be_longer} {list(map(str, effect.extras))} {effect.yields}"
            leg = f"{_leg(effect)} {effect.role} {effect.target} {effect.deadline_ns} {hops}"
            return f"start_leg {leg} {part} {resume} {other} {_decision(effect.decision)}"
        case ordered.StopLeg():
            return f"stop_leg {_leg(effect)} {effect.detail}"
        case ordered.TakeBackLeg():
            identity = f" {effect.identity}" if effect.identity else ""
            return f"take_back_leg {_leg(effect)} {effect.may_append}{identity} {effect.detail}"
        case ordered.AcceptForward():
            return f"accept_forward {effect.request_id}"
        case ordered.RefuseForward():
            return f"refuse_forward {effect.request_id} {effect.reason} {effect.detail}"
        case ordered.EndRequest():
            resumes = resumes_in(effect.notes) or NO_RESUMES
            used = f"{resumes.count}/{resumes.first_step_deaths}"
            told = f"{effect.outcome} {effect.attempts} {effect.is_final} {used} {effect.retry_after_ns}"
            return f"end_request {effect.request_id} {told} {effect.detail}"
        case ordered.RecordShadow():
            return f"shadow {effect.request_id} {effect.target} {_decision(effect.decision)}"
        case _:
            return ""


def record_line(record: RequestReport) -> str:
    """Outcome of one request as its client recorded it."""
    when = f"{record.sent_ns} {record.first_token_ns} {record.ended_ns}"
    tokens = f"{record.output_tokens} {record.prompt_tokens} {record.cached_tokens}"
    return f"{record.client_region} {record.end} {when} {record.served_by} {tokens} {record.tries} {record.detail}"


def _leg(
    of: events.FirstToken
    | events.LegEnded
    | events.ResponseStored
    | ordered.StartLeg
    | ordered.StopLeg
    | ordered.TakeBackLeg,
) -> str:
    return f"{of.request_id}/{of.attempt}.{of.leg}"


def _count(notes: Notes) -> int | None:
    resumes = resumes_in(notes)
    return None if resumes is None else resumes.count


def _profile(profile: RequestProfile) -> str:
    what = f"{profile.model} {profile.tenant} {profile.prompt_bytes} {profile.prefix[-8:].hex()}"
    return f"{profile.request_id} {what} {profile.service_class} {profile.stream} {profile.follows}"


def _decision(decision: Decision) -> str:
    how = f"{decision.reason} {decision.matched_blocks}/{decision.prompt_blocks} of {decision.candidates}"
    pool = decision.pool
    chosen = pool and f"{pool.step} {pool.pool} {pool.preferred} {pool.need_tokens} {pool.is_soft}"
    considered = "; ".join(map(_candidate, decision.considered))
    return f"{how} after {decision.waited_ns} [{considered}] {chosen}"


def _candidate(candidate: Candidate) -> str:
    told = f"{candidate.target} {candidate.standing} {candidate.matched_blocks} {candidate.load} {candidate.rtt_ns}"
    costs, decode = candidate.costs, candidate.decode
    if costs is not None:
        told += f" {costs.reading_ns} {costs.crowding_ns} {costs.waiting_ns} {costs.distance_ns}"
        further = {each.name: each.amount for each in costs.further}
        told += f" {further.get(FIRST_TOKEN)} {further.get(MONEY)} {further.get(CARBON)}"
    if decode is not None:
        told += f" {decode.group} {decode.free_slots} {decode.load_tokens} {decode.margin_tokens}"
    return told
