from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from controller.core import events
from controller.core.config import ControllerConfig
from controller.core.controller_core import ControllerCore
from controller.core.effects import Effect
from controller.core.events import Event
from controller.driver import ControllerDriver, ControllerStep
from controller.journal import FORMAT, ControllerJournal, new_header, read_journal, replay
from gateway.core.kernel.residency import TenantPolicy
from gateway.core.vocabulary import GatewayId, Jurisdiction, ReplicaId, TenantName
from mesh.journal import JournalSettings, JournalUnreadable
from mesh.journal_lines import encode_header, encode_step
from mesh.steps import Step
from tests.support.clock import StillClock
from tests.support.controller import EU, SECOND, US, Told, mesh, policy
from tests.support.core import rule

HEADER = new_header("ctl-1", "story")


def refuse(reason: str) -> None:
    raise AssertionError(reason)


class Watched(Told):
    """A core whose steps are recorded."""

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.steps: list[ControllerStep] = []
        super().__init__(config)

    def tell(self, event: Event, *, after_ns: int = 0) -> list[Effect]:
        effects = super().tell(event, after_ns=after_ns)
        self.steps.append(Step(self.now_ns, event, effects))
        return effects


def a_life() -> list[ControllerStep]:
    """Steps with every kind of event and every kind of effect."""
    told = Watched(ControllerConfig(closed_jurisdictions=frozenset({Jurisdiction("EU")})))
    own = policy(US, accept=rule(US))
    restored = events.StateRestored(3, ((ReplicaId("us-r0"), GatewayId("eu")),), (own,))
    told.tell(restored)
    other = mesh()
    told.register(other.core.gateways.values(), other.core.replicas.values())
    told.connect("us", "eu", "ap", policies={"us": own})
    told.heard("us", "eu", rtt_ns=80_000_000)
    with_tenants = policy(EU)
    with_tenants.tenants[TenantName("acme")] = TenantPolicy(rule(EU))
    told.tell(events.PolicyAccepted(GatewayId("eu"), with_tenants))
    told.tell(events.NarrowingApplied((policy(EU, accept=rule(EU, US)),)))
    told.tell(events.FreezeOrdered("maintenance"))
    told.tell(events.FreezeLifted())
    told.kill("us")
    told.tell(events.GrantsLeftOut(GatewayId("eu"), ((ReplicaId("us-r0"), "no key"),)))
    told.wait(10 * SECOND)
    told.kill("eu")
    told.kill("ap")
    told.wait(90 * SECOND)
    return told.steps


def written(path: Path, steps: list[ControllerStep]) -> Path:
    path.write_bytes(b"".join([encode_header(HEADER), *map(encode_step, steps)]))
    return path


def test_what_is_read_is_what_was_written_for_every_kind_of_event_and_effect(tmp_path: Path) -> None:
    steps = a_life()
    assert {type(step.event) for step in steps} == set(events.Event.__args__)
    assert {type(effect) for step in steps for effect in step.effects or ()} == set(Effect.__args__)
    header, read = read_journal(written(tmp_path / "a.journal", steps))
    assert header == HEADER
    assert list(read) == steps


def test_a_story_told_again_is_the_same(tmp_path: Path) -> None:
    steps = a_life()
    report = replay([written(tmp_path / "a.journal", steps)])
    assert (report.divergence, report.steps) == (None, len(steps))


def test_a_step_that_is_another_today_is_named(tmp_path: Path) -> None:
    steps = a_life()
    last = next(number for number, step in enumerate(steps) if step.effects)
    steps[last] = Step(steps[last].now_ns, steps[last].event, [])
    report = replay([written(tmp_path / "a.journal", steps)])
    assert report.divergence is not None
    assert (report.divergence.step, report.divergence.expected) == (last + 1, "nothing")


def test_one_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(encode_header(HEADER).replace(b'"format":%d' % FORMAT, b'"format":99'))
    with pytest.raises(JournalUnreadable, match="format 99"):
        replay([path])


async def test_a_core_that_fails_leaves_a_tail_and_a_story_that_fails_again(tmp_path: Path) -> None:
    journal = ControllerJournal(JournalSettings(tmp_path, 1 << 20, 4), HEADER, on_stopped=refuse)
    kept: list[Path] = []
    driver = ControllerDriver(
        ControllerCore(),
        clock := StillClock(5),
        observers=[journal],
        on_crash=lambda crash: kept.append(journal.on_crash(crash)),
    )
    driver.submit(events.ControllerConfigApplied(ControllerConfig()))
    clock.now = 1  # the core asserts that time does not go backwards
    driver.submit(events.ControllerTimePassed())
    assert driver.failed.is_set()
    journal.close()
    driver.close()
    header, steps = read_journal(kept[0])
    assert header.tail
    assert [step.effects for step in steps] == [[], None]
    assert replay([tmp_path / "story-000000.journal"]).divergence is None


NAMES = [
    *("ControllerConfigApplied", "ControllerTimePassed", "FreezeLifted", "FreezeOrdered", "GatewayConnected"),
    *("GatewayDisconnected", "GatewayProbed", "GrantsLeftOut", "NarrowingApplied", "PeersHeard", "PolicyAccepted"),
    *("RegistryApplied", "StateRestored"),
    *("Assign", "KeepOwners", "KeepPolicy", "PublishRecords", "StartRecovery", "TellCondition", "TellFrozen"),
    "TellOrphans",
]
"""Names by which a journal of format 3 tells events and effects apart."""


def test_a_name_that_changes_is_another_format() -> None:
    names = [*sorted(kind.__name__ for kind in get_args(Event)), *sorted(kind.__name__ for kind in get_args(Effect))]
    assert (FORMAT, names) == (3, NAMES)
