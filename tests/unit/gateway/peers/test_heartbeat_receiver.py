from __future__ import annotations

import random

from gateway.core.events import Event
from gateway.core.kernel.events import PeersObserved, TargetLost
from gateway.core.vocabulary import ControlVersion, GatewayId, PeerObservation, PeerSpec, peer_target
from gateway.peers.heartbeat_receiver import HeartbeatReceiver
from gateway.peers.heartbeats import Heartbeats
from mesh.clock import Clock
from mesh.config import LoggingConfig
from mesh.logs import make_logger
from tests.fakes.liar import idle_report
from tests.fakes.peer import serve_fake_peer
from tests.support.core import EU, US
from tests.support.links import peer_link

PEER = GatewayId("eu-1")


def test_what_is_heard_goes_on_to_the_core_and_to_whoever_has_an_ear_for_it() -> None:
    core: list[Event] = []
    versions: list[tuple[GatewayId, ControlVersion]] = []
    losses: list[str] = []
    heartbeat_receiver = HeartbeatReceiver(lambda _, event: core.append(event))
    beat = PeersObserved((PeerObservation(idle_report(1), 0, 0, 0, 0),))
    heartbeat_receiver.hear(PEER, beat)
    heartbeat_receiver.start(
        on_control=lambda *heard: versions.append(heard), on_found=lambda: None, on_lost=lambda: losses.append("lost")
    )
    loss = TargetLost(peer_target(PEER), "gone")
    heartbeat_receiver.hear(PEER, beat)
    heartbeat_receiver.hear(PEER, loss)
    assert core == [beat, beat, loss]
    assert (versions, losses) == ([(PEER, ControlVersion())], ["lost"])


async def test_each_peer_counts_once_also_when_it_is_named_differently() -> None:
    async with serve_fake_peer() as fake:
        link = peer_link(fake.config(PeerSpec(PEER, EU)))

        def heartbeats() -> Heartbeats:
            return Heartbeats(
                link,
                GatewayId("us-1"),
                US,
                submit=lambda _: None,
                clock=Clock(),
                rng=random.Random(1),
                on_refused=lambda: None,
                log=make_logger(LoggingConfig(), "us-1"),
            )

        heartbeat_receiver = HeartbeatReceiver(lambda *_: None)
        end_old = heartbeat_receiver.listen_to(PEER, heartbeats())
        end_new = heartbeat_receiver.listen_to(PEER, heartbeats())
        end_old()
        (heard,) = heartbeat_receiver.heard()
        assert (heard.gateway_id, heard.heard_ago_ns, heard.is_broken, heard.rtt_ns) == (PEER, None, False, None)
        end_new()
        assert heartbeat_receiver.heard() == []
        await link.close()
