from __future__ import annotations

from msgspec.structs import replace

from gateway.config.sections import ControlConfig
from gateway.config.targets import Dialect, ReplicaConfig
from gateway.core.vocabulary import ReplicaId
from gateway.discovery.adoptions import Adoptions
from mesh.clock import Clock
from tests.fakes.engine import Tally
from tests.support.background import in_background
from tests.support.clock import StillClock
from tests.support.core import SECOND, replica_spec

CONFIG = ControlConfig(adopted_silent_max_ns=10 * SECOND, adopted_retry_ns=60 * SECOND)


def adopted(name: str) -> ReplicaConfig:
    return ReplicaConfig(replica_spec(name), f"http://{name}", Dialect.VLLM, is_adopted=True)


class Stand:
    def __init__(self, *names: str) -> None:
        self.clock = StillClock(5 * SECOND)
        self.changes = Tally()
        self.replicas = [adopted(name) for name in names]
        self.adoptions = Adoptions(self.clock, CONFIG, self.changes.add)
        self.adoptions.configure(CONFIG, self.replicas)

    def look(self, name: str, *, has_answered: bool) -> None:
        self.adoptions.looked_at(f"http://{name}", has_answered)

    def given_up(self) -> set[str]:
        return set(self.adoptions.given_up(self.replicas))


def test_one_that_stays_silent_is_given_up_and_tried_again_later_for_as_long() -> None:
    stand = Stand("a", "b")
    stand.look("a", has_answered=False)
    stand.clock.now += 10 * SECOND - 1
    stand.look("a", has_answered=False)
    assert (stand.given_up(), stand.changes.count) == (set(), 0)
    stand.clock.now += 1
    stand.look("a", has_answered=False)
    stand.look("b", has_answered=False)
    assert (stand.given_up(), stand.changes.count) == ({"a"}, 1)
    assert "has not answered for 10 s" in stand.adoptions.given_up(stand.replicas)[ReplicaId("a")]
    stand.clock.now += 60 * SECOND - 1
    stand.adoptions.try_again()
    assert stand.given_up() == {"a"}
    stand.clock.now += 1
    stand.adoptions.try_again()
    assert (stand.given_up(), stand.changes.count) == (set(), 2)
    stand.look("a", has_answered=False)
    assert stand.given_up() == set(), "it is silent from now on"


def test_an_answer_forgives_silence() -> None:
    stand = Stand("a")
    stand.look("a", has_answered=False)
    stand.clock.now += 9 * SECOND
    stand.look("a", has_answered=True)
    stand.clock.now += 9 * SECOND
    stand.look("a", has_answered=False)
    assert stand.given_up() == set()


def test_what_is_adopted_no_longer_is_forgotten_and_our_own_is_never_given_up() -> None:
    stand = Stand("a", "b")
    for _ in range(2):
        stand.look("a", has_answered=False)
        stand.clock.now += 10 * SECOND
    assert stand.given_up() == {"a"}
    assert not stand.adoptions.given_up([replace(adopted("a"), is_adopted=False)])
    stand.adoptions.configure(CONFIG, [adopted("b")])
    assert stand.given_up() == set()


async def test_the_loop_wakes_when_the_next_is_due() -> None:
    changes = Tally()
    config = ControlConfig(adopted_silent_max_ns=0, adopted_retry_ns=1_000_000)
    adoptions = Adoptions(Clock(), config, changes.add)
    adoptions.configure(config, [adopted("a")])
    async with in_background(adoptions.run()):
        adoptions.looked_at("http://a", False)
        assert adoptions.given_up([adopted("a")])
        await changes.reaches(2)
        assert not adoptions.given_up([adopted("a")])
