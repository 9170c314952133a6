"""Wires a gateway to peers and controllers: outgoing and incoming connections, and reports of which gateway serves
which replica. It decides nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from gateway.app.budgets import Budgets
from gateway.app.control import ControlDependencies, ControllerLink
from gateway.app.decision_reports import told
from gateway.app.load import forwards_told, load_of
from gateway.app.observed_core import LAST_BYTES_S, ObservedCore
from gateway.config.sections import GatewayConfig
from gateway.config.targets import PeerConfig
from gateway.core.vocabulary import GatewayId
from gateway.door.settings import cache_salts_of
from gateway.peers.caller_refusal import CallerRefusal
from gateway.peers.exchange.stream_callbacks import StreamCallbacks
from gateway.peers.heartbeat_receiver import HeartbeatReceiver
from gateway.peers.heartbeats import Heartbeats, WriteHeartbeat
from gateway.peers.link import PeerLink
from gateway.peers.ownership import OwnershipAsker
from gateway.peers.peer_links import PeerRoster
from gateway.peers.server import PeerServer, PeerService
from gateway.records.control_metrics import ControlLevels
from gateway.request.driver import Driver
from gateway.request.proxied import RequestContext
from gateway.security.tls import Certificates
from mesh.control.pool_history import PoolHistory
from mesh.supervisor import Supervisor
from mesh.transport import Plaintext

_SECOND_NS = 1_000_000_000


def make_control(
    config: GatewayConfig,
    observed: ObservedCore,
    certificates: Certificates,
    *,
    left_out: Callable[[], dict[str, str]],
    refused: Callable[[], dict[str, str]],
) -> ControllerLink:
    """Make the controller link, with the kept snapshot."""
    transport = certificates.mesh or Plaintext()
    surroundings = ControlDependencies(
        heartbeat_receiver=HeartbeatReceiver(observed.trust.hear),
        open_requests=lambda: observed.driver.open_requests,
        load=lambda: load_of(observed.core),
        forwards=lambda: forwards_told(observed.core, observed.forward_rates, observed.clock.now_ns()),
        totals=observed.metrics.totals,
        told=partial(told, observed),
        left_out=left_out,
        refused=refused,
        abilities=tuple(each for feature in observed.features for each in feature.abilities()),
        histories=lambda: [each for feature in observed.features for each in feature.pool_histories()],
        take_history=partial(_hand_to_features, observed),
    )
    control = ControllerLink(
        config, transport, surroundings, clock=observed.clock, log=observed.log, regions=observed.policy.regions
    )
    observed.policy.follow_own(control.follow_policy)
    observed.metrics.registry.register(ControlLevels(control))
    control.restore()
    return control


def _hand_to_features(observed: ObservedCore, history: PoolHistory) -> None:
    for feature in observed.features:
        feature.take_history(history)


def listen_for_control(
    config: GatewayConfig, observed: ObservedCore, loops: Supervisor, roster: PeerRoster, control: ControllerLink
) -> None:
    """Pass the peers' reports of ownership to the controller link."""
    asker = OwnershipAsker(
        roster.links,
        config.gateway_id,
        is_news=control.is_news,
        learnt=control.learnt,
        start=loops.start,
        clock=observed.clock,
        log=observed.log,
    )
    attachment = control.attachment
    control.heartbeat_receiver.start(
        on_control=asker.heard, on_found=attachment.try_at_once, on_lost=attachment.report_soon
    )


def make_roster(
    config: GatewayConfig,
    observed: ObservedCore,
    loops: Supervisor,
    control: ControllerLink,
    *,
    budgets: Budgets,
) -> PeerRoster:
    """Make the roster of peers. Their heartbeats go to budgets and features, and the wanted replicas to the
    controller."""
    observed.metrics.registry.register(budgets.levels())
    control.tell_wanted(lambda: tuple(wanted for each in observed.features for wanted in each.wanted_replicas()))

    def run_loops(link: PeerLink) -> list[Callable[[], object]]:
        heartbeats = _heartbeats(config, observed, link, control.heartbeat_receiver, budgets=budgets)
        return [
            control.heartbeat_receiver.listen_to(link.peer.spec.gateway_id, heartbeats),
            loops.run("peer_credentials", link.follow_credentials),
            loops.run("peer_pings", heartbeats.measure),
            loops.run("peer_heartbeats", heartbeats.listen),
            loops.run("peer_silence", heartbeats.watch),
        ]

    def retire(link: PeerLink) -> None:
        loops.run("peer_retiring", partial(link.retire, config.limits.request_deadline_ns / _SECOND_NS))

    watch = _watch(observed, "caller")

    def open_link(peer: PeerConfig) -> PeerLink:
        return PeerLink(
            peer,
            config.peering,
            control.transport,
            loops.start,
            clock=observed.clock,
            watch=watch,
            on_turn=observed.driver.run,
        )

    return PeerRoster(open_link, run_loops, retire)


def _watch(observed: ObservedCore, seen_by: str) -> StreamCallbacks:
    """Count and log irregularities of forward streams."""

    def broken(peer: GatewayId, why: str) -> None:
        observed.metrics.exchange_broken(seen_by, peer)
        observed.log.warning("forward_stream_broken", peer=peer, seen_by=seen_by, reason=why)

    return StreamCallbacks(observed.metrics.exchange_ignored, broken)


def _heartbeats(
    config: GatewayConfig,
    observed: ObservedCore,
    link: PeerLink,
    heartbeat_receiver: HeartbeatReceiver,
    *,
    budgets: Budgets,
) -> Heartbeats:
    gateway_id = link.peer.spec.gateway_id
    readers = [each.heartbeat_reader(link.peer.spec) for each in observed.features]
    return Heartbeats(
        link,
        config.gateway_id,
        config.place,
        submit=partial(heartbeat_receiver.hear, gateway_id),
        clock=observed.clock,
        rng=random.Random(),
        on_refused=lambda: observed.metrics.peer_refused("caller", CallerRefusal.IDENTITY),
        log=observed.log,
        on_budgets=partial(budgets.hear, gateway_id),
        on_found=partial(heartbeat_receiver.found, gateway_id),
        on_lost=partial(budgets.fell_silent, gateway_id),
        readers=[read for read in readers if read is not None],
    )


def make_peer_server(
    config: GatewayConfig,
    observed: ObservedCore,
    context: RequestContext,
    roster: PeerRoster,
    control: ControllerLink,
    *,
    budgets: Budgets,
) -> PeerServer:
    service = PeerService(
        context,
        observed.board,
        roster.specs,
        peering=config.peering,
        keep_alive_ns=config.core.observation.keep_alive_ns,
        transport=control.transport,
        clock=observed.clock,
        turn_over=observed.driver.run,
        on_refused=partial(observed.metrics.peer_refused, "called"),
        log=observed.log,
        explain=observed.explain_to,
        cache_salts=cache_salts_of(config),
        pass_priority=config.pass_priority,
        why_closed=observed.why_closed,
        on_malformed=observed.metrics.forward_malformed,
        ownership=lambda: control.precedence.ownership,
        watch=_watch(observed, "called"),
        budgets=lambda place, seen: budgets.told_to(place, observed.core.policy, seen),
        on_subscribed=control.heartbeat_receiver.called_by,
        writers=partial(_heartbeat_writers, observed),
    )
    return PeerServer(
        service,
        observed.board,
        config.peering,
        control.transport,
        clock=observed.clock,
        log=observed.log,
        shares_port=config.state.folder is not None,
    )


def _heartbeat_writers(observed: ObservedCore) -> list[WriteHeartbeat]:
    writers = [each.heartbeat_writer() for each in observed.features]
    return [write for write in writers if write is not None]


async def stop_peer_server(server: PeerServer, driver: Driver) -> None:
    await server.stop(0.0 if driver.open_requests else LAST_BYTES_S)
