"""Wires a gateway to peers and controllers: outgoing and incoming connections, and reports of which gateway serves
which replica. It decides nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from gateway.app.budgets import Budgets
from gateway.app.control import Control, Surroundings
from gateway.app.decided import told
from gateway.app.desk import LAST_BYTES_S, Desk
from gateway.app.load import forwards_told, load_of
from gateway.config.sections import GatewayConfig
from gateway.config.targets import PeerConfig
from gateway.core.vocabulary import GatewayId
from gateway.peers.ears import Ears
from gateway.peers.exchange.watch import Watch
from gateway.peers.heartbeats import Heartbeats
from gateway.peers.link import PeerLink
from gateway.peers.ownership import OwnershipAsker
from gateway.peers.roster import PeerRoster
from gateway.peers.server import PeerServer, PeerService
from gateway.records.control_metrics import ControlLevels
from gateway.request.cache_salts import CacheSalts
from gateway.request.driver import Driver
from gateway.request.proxied import RequestContext
from gateway.security.tls import Certificates
from mesh.supervisor import Supervisor
from mesh.transport import Plaintext

_SECOND_NS = 1_000_000_000


def make_control(
    config: GatewayConfig, desk: Desk, certificates: Certificates, left_out: Callable[[], dict[str, str]]
) -> Control:
    """Make the controller link, with the kept snapshot."""
    transport = certificates.mesh or Plaintext()
    surroundings = Surroundings(
        ears=Ears(desk.trust.hear),
        open_requests=lambda: desk.driver.open_requests,
        load=lambda: load_of(desk.core),
        forwards=lambda: forwards_told(desk.core, desk.forward_rates, desk.clock.now_ns()),
        totals=desk.metrics.totals,
        told=partial(told, desk),
        left_out=left_out,
    )
    control = Control(config, transport, surroundings, clock=desk.clock, log=desk.log, regions=desk.policy.regions)
    desk.policy.follow_own(control.follow_policy)
    desk.metrics.registry.register(ControlLevels(control))
    control.restore()
    return control


def listen_for_control(
    config: GatewayConfig, desk: Desk, loops: Supervisor, roster: PeerRoster, control: Control
) -> None:
    """Pass the peers' reports of ownership to the controller link."""
    asker = OwnershipAsker(
        roster.links,
        config.gateway_id,
        is_news=control.is_news,
        learnt=control.learnt,
        start=loops.start,
        clock=desk.clock,
        log=desk.log,
    )
    control.ears.start(on_control=asker.heard, on_lost=control.attachment.report_soon)


def make_roster(
    config: GatewayConfig,
    desk: Desk,
    loops: Supervisor,
    control: Control,
    *,
    budgets: Budgets,
) -> PeerRoster:
    """Make the roster of peers. Their heartbeats go to budgets and features, and the wanted replicas to the
    controller."""
    desk.metrics.registry.register(budgets.levels())
    control.tell_wanted(lambda: tuple(wanted for each in desk.features for wanted in each.wanted_replicas()))

    def run_loops(link: PeerLink) -> list[Callable[[], object]]:
        heartbeats = _heartbeats(config, desk, link, control.ears, budgets=budgets)
        return [
            control.ears.listen_to(link.peer.spec.gateway_id, heartbeats),
            loops.run("peer_credentials", link.follow_credentials),
            loops.run("peer_pings", heartbeats.measure),
            loops.run("peer_heartbeats", heartbeats.listen),
        ]

    def retire(link: PeerLink) -> None:
        loops.run("peer_retiring", partial(link.retire, config.limits.request_deadline_ns / _SECOND_NS))

    watch = _watch(desk, "caller")

    def open_link(peer: PeerConfig) -> PeerLink:
        return PeerLink(
            peer,
            config.peering,
            control.transport,
            loops.start,
            clock=desk.clock,
            watch=watch,
            on_turn=desk.driver.run,
        )

    return PeerRoster(open_link, run_loops, retire)


def _watch(desk: Desk, seen_by: str) -> Watch:
    """Count and log irregularities of forward streams."""

    def broken(peer: GatewayId, why: str) -> None:
        desk.metrics.exchange_broken(seen_by, peer)
        desk.log.warning("forward_stream_broken", peer=peer, seen_by=seen_by, reason=why)

    return Watch(desk.metrics.exchange_ignored, broken)


def _heartbeats(config: GatewayConfig, desk: Desk, link: PeerLink, ears: Ears, *, budgets: Budgets) -> Heartbeats:
    gateway_id = link.peer.spec.gateway_id
    readers = [each.heartbeat_reader(link.peer.spec) for each in desk.features]
    return Heartbeats(
        link,
        config.gateway_id,
        config.place,
        submit=partial(ears.hear, gateway_id),
        clock=desk.clock,
        rng=random.Random(),
        on_refused=lambda: desk.metrics.peer_refused("caller"),
        log=desk.log,
        on_budgets=partial(budgets.hear, gateway_id),
        on_lost=partial(budgets.fell_silent, gateway_id),
        readers=[read for read in readers if read is not None],
    )


def make_peer_server(
    config: GatewayConfig,
    desk: Desk,
    context: RequestContext,
    roster: PeerRoster,
    control: Control,
    *,
    budgets: Budgets,
) -> PeerServer:
    service = PeerService(
        context,
        desk.board,
        roster.specs,
        peering=config.peering,
        keep_alive_ns=config.core.observation.keep_alive_ns,
        transport=control.transport,
        clock=desk.clock,
        turn_over=desk.driver.run,
        on_refused=lambda: desk.metrics.peer_refused("called"),
        log=desk.log,
        explain=desk.explain_to,
        cache_salts=CacheSalts(config.engine_cache, config.cache_secret),
        pass_priority=config.pass_priority,
        why_closed=desk.why_closed,
        on_malformed=desk.metrics.forward_malformed,
        ownership=lambda: control.precedence.ownership,
        watch=_watch(desk, "called"),
        budgets=lambda place, seen: budgets.told_to(place, desk.core.policy, seen),
        on_subscribed=control.ears.called_by,
        complete=[each.complete_heartbeat for each in desk.features],
    )
    return PeerServer(
        service,
        desk.board,
        config.peering,
        control.transport,
        clock=desk.clock,
        log=desk.log,
        shares_port=config.state.folder is not None,
    )


async def stop_peer_server(server: PeerServer, driver: Driver) -> None:
    await server.stop(0.0 if driver.open_requests else LAST_BYTES_S)
