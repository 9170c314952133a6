"""Load reports to peers: content and timing."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.events import ConfigApplied
from gateway.core.kernel.config import ObservationConfig
from gateway.core.kernel.effects import Effect, PublishLoad
from gateway.core.kernel.events import AssignmentApplied, DrainRequested
from gateway.core.kernel.feature import Feature
from gateway.core.vocabulary import ControlVersion, NeededIdentity, TenantUse
from tests.support.core import ANYWHERE, MODEL, MS, SECOND, desk, replica_spec


def published(effects: list[Effect]) -> list[PublishLoad]:
    return [effect for effect in effects if isinstance(effect, PublishLoad)]


def test_nothing_new_means_only_keep_alives() -> None:
    one = desk()
    one.wait(200 * MS)
    assert len(published(one.wait(3 * SECOND))) in (3, 4)


def test_a_change_is_told_within_the_interval_and_not_more_often() -> None:
    one = desk(replicas=1)
    one.wait(SECOND)
    told = published(one.probe(waiting=1) + one.wait(100 * MS))
    assert told[-1].report.capacities[0].available == 0
    flapping: list[Effect] = []
    for i in range(100):
        flapping += one.probe(waiting=i % 2)
        flapping += one.wait(10 * MS)
    assert len(published(flapping)) <= 11


def small_changes(change_share: float) -> list[PublishLoad]:
    """Reports of a second and a half in which one of twenty replicas is full and free by turns."""
    one = desk(replicas=20)
    one.tell(ConfigApplied(CoreConfig(observation=ObservationConfig(publish_change_share=change_share))))
    one.probe()
    one.wait(150 * MS)
    told: list[Effect] = []
    for i in range(15):
        told += one.probe(str(next(iter(one.core.replicas)).spec.replica_id), waiting=i % 2)
        told += one.wait(100 * MS)
    return published(told)


def test_changes_too_small_to_matter_wait_for_the_keep_alive() -> None:
    assert len(small_changes(0.0)) >= 14
    assert len(small_changes(0.25)) in (1, 2)


def test_many_identities_of_one_model_are_told_as_one_that_is_unknown() -> None:
    """Engines that find the model under a path of their own lengthen no heartbeat; here they stay apart."""

    def told(identities: int) -> list[tuple[str, int, int]]:
        specs = [replace(replica_spec(f"r{number}"), identity=f"/pods/{number % identities}") for number in range(20)]
        one = desk(replicas=specs)
        reports = published(one.wait(SECOND))
        bound = NeededIdentity("/pods/0", takes_unknown=True)
        eligible = one.core.replicas.groups.eligible(MODEL, ANYWHERE, identity=bound)
        assert eligible.bit_count() == len([spec for spec in specs if spec.identity == "/pods/0"])
        return [(each.identity, each.replicas, each.available) for each in reports[-1].report.capacities]

    assert len(told(8)) == 8
    assert told(9) == told(20) == [("", 20, 20)]


class CountedReports(Feature):
    """Feature that tells nothing, and counts how often a report is made."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def told_version(self) -> int:
        return 0

    def uses(self) -> tuple[TenantUse, ...]:
        self.count += 1
        return ()


def test_changes_too_small_to_matter_are_judged_once_per_interval() -> None:
    """A report costs time in proportion to the replicas; judging each change would cost it at every request."""
    one = desk(replicas=20)
    one.tell(ConfigApplied(CoreConfig(observation=ObservationConfig(publish_change_share=0.25))))
    one.probe()
    one.wait(150 * MS)
    reports = CountedReports()
    one.core.hooks.uses = (reports,)
    first = str(next(iter(one.core.replicas)).spec.replica_id)
    for i in range(50):
        one.probe(first, waiting=i % 2)
        one.wait(10 * MS)
    assert reports.count in (4, 5, 6)
    told = published(one.probe(waiting=1) + one.wait(100 * MS))
    assert [each.report.capacities[0].available for each in told] == [0], "what matters is told within an interval"


def test_the_last_one_to_go_and_the_first_to_come_back_always_matter() -> None:
    one = desk(replicas=1)
    one.tell(ConfigApplied(CoreConfig(observation=ObservationConfig(publish_change_share=1.0))))
    one.wait(SECOND)
    told = published(one.probe(waiting=1) + one.wait(100 * MS) + one.probe(waiting=0) + one.wait(100 * MS))
    assert [each.report.capacities[0].available for each in told[-2:]] == [0, 1]


def test_what_is_read_and_what_is_free_by_less_than_a_prompt_more_or_less_is_no_news() -> None:
    """Both figures of a busy replica with a full cache go to zero and back all the time."""
    config = CoreConfig(observation=ObservationConfig(publish_change_share=0.25))
    one = desk(replicas=1, config=config)
    one.probe(running=50, kv_tokens=1_000_000)
    one.wait(2 * SECOND)
    told: list[Effect] = []
    for i in range(20):
        one.ask(f"q{i}", prompt="word " * 100)
        told += one.probe(running=50 + i, kv_tokens=1_000_000, kv_usage=1.0 - i % 2 / 10_000)
        told += one.wait(50 * MS) + one.first_token(f"q{i}") + one.wait(50 * MS)
    assert len(published(told)) in (2, 3, 4), "and those for the keep-alive"
    long = one.ask("long", prompt="word " * 5_000) + one.wait(100 * MS)
    assert [each.report.capacities[0].backlog_bytes > 20_000 for each in published(long)] == [True]
    freed = one.probe(running=70, kv_tokens=1_000_000, kv_usage=0.99) + one.wait(100 * MS)
    assert [each.report.capacities[0].free_tokens for each in published(freed)] == [10_000]


def test_a_draining_gateway_says_so() -> None:
    one = desk()
    one.wait(SECOND)
    told = published(one.tell(DrainRequested()) + one.wait(100 * MS))
    assert told[0].report.accepting is False


def test_what_it_serves_by_is_told_soon_and_is_always_news() -> None:
    one = desk(replicas=1)
    one.tell(ConfigApplied(CoreConfig(observation=ObservationConfig(publish_change_share=1.0))))
    one.wait(SECOND)
    specs = tuple(state.spec for state in one.core.replicas)
    told = published(
        one.tell(AssignmentApplied(one.core.assignment_version + 1, specs, (), ControlVersion(2, 7)))
        + one.wait(100 * MS)
    )
    assert [each.report.control for each in told] == [ControlVersion(2, 7)]
