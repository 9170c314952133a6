from __future__ import annotations

from msgspec.structs import replace

from gateway.config.targets import PeerConfig
from gateway.core.vocabulary import Place
from gateway.peers.link import PeerLink
from gateway.peers.peer_links import PeerRoster
from mesh.values import Address
from tests.support.core import AP, EU, peer_spec
from tests.support.links import peer_link


def peer(name: str, place: Place, port: int = 1) -> PeerConfig:
    return PeerConfig(peer_spec(name, place), Address("127.0.0.1", port))


class Story:
    """Events of each link, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.retired: list[PeerLink] = []
        self.roster = PeerRoster(peer_link, self._run_loops, self.retired.append)

    def _run_loops(self, link: PeerLink) -> list:  # type: ignore[type-arg]
        name = f"{link.peer.spec.gateway_id}:{link.peer.address.port}"
        self.told.append(f"{name} begins")
        return [lambda: self.told.append(f"{name} ends")]

    async def close(self) -> None:
        await self.roster.close()
        for link in self.retired:
            await link.close()


async def test_peers_come_and_go_and_those_that_stay_keep_their_link() -> None:
    story = Story()
    roster, links, specs = story.roster, story.roster.links, story.roster.specs
    roster.replace([peer("eu-1", EU), peer("ap-1", AP)])
    kept = links[peer("eu-1", EU).spec.gateway_id]
    roster.replace([peer("eu-1", EU)])
    assert list(links.values()) == [kept]
    assert list(specs.values()) == [peer_spec("eu-1", EU)]
    assert story.told == ["eu-1:1 begins", "ap-1:1 begins", "ap-1:1 ends"]
    assert [link.peer.spec.gateway_id for link in story.retired] == ["ap-1"]
    await story.close()


async def test_a_peer_that_moves_gets_a_new_link_and_the_old_one_is_retired_not_cut() -> None:
    story = Story()
    story.roster.replace([peer("eu-1", EU)])
    (old,) = story.roster.links.values()
    story.roster.replace([replace(peer("eu-1", EU), address=Address("127.0.0.1", 2))])
    (new,) = story.roster.links.values()
    assert new.peer.address.port == 2
    assert story.retired == [old]
    assert story.told == ["eu-1:1 begins", "eu-1:1 ends", "eu-1:2 begins"]
    await story.close()
