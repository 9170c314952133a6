from __future__ import annotations

import os
import stat
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gateway.config.placement_plug_ins import find_policy
from gateway.core import events
from gateway.core.config import CoreConfig
from gateway.core.events import Event
from gateway.core.features.cache_digests.config import CacheDigestsConfig
from gateway.core.features.cache_digests.events import DigestPart
from gateway.core.gateway_core import GatewayCore
from gateway.core.kernel.config import PlacementConfig, PlacementPolicy
from gateway.core.kernel.effects import Effect, EndRequest, RefuseForward, StartLeg
from gateway.core.kernel.residency import TenantPolicy
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import (
    DEFAULT_POOL,
    GatewayId,
    LegResult,
    LoadReport,
    ModelCapacity,
    ModelName,
    PeerObservation,
    PlaceRule,
    RegionName,
    ReplicaId,
    ReplicaObservation,
    RequestProfile,
    ServiceClass,
    TenantName,
    replica_target,
)
from gateway.records.journal import FORMAT, GatewayJournal, new_header, read_journal, replay
from gateway.records.pseudonyms import Pseudonyms
from gateway.request.driver import GatewayStep
from mesh.journal import JournalSettings, JournalUnreadable
from mesh.journal_lines import encode_header, encode_step, write_tail
from mesh.steps import Step
from tests.support.core import ANYWHERE, EU, SECOND, TENANT, US, of_kind, peer_spec, policy, profile, replica_spec, rule
from tests.support.orders import forward_from_eu
from tests.support.plug_ins import put
from tests.support.steps import tell_step

GATEWAY = GatewayId("us-1")
HEADER = new_header(GATEWAY, US, PlacementConfig(), seed=7, story="story")
NO_PLACE = CoreConfig(PlacementConfig(policy=PlacementPolicy.RANDOM))


def tell_story(requests: int = 20) -> list[GatewayStep]:
    """Steps of a gateway in which chance plays a part."""
    core = GatewayCore(GATEWAY, US, seed=7)
    steps: list[GatewayStep] = []

    def tell(event: Event) -> list[Effect]:
        now_ns = len(steps) * 1_000_000
        effects = core.handle(event, now_ns)
        steps.append(Step(now_ns, event, list(effects)))
        return effects

    tenants = {TenantName("acme"): TenantPolicy(rule(EU)), TenantName("zeta"): TenantPolicy(ANYWHERE)}
    tell(events.ConfigApplied(NO_PLACE))
    tell(events.PolicyApplied(policy(US, tenants=tenants)))
    tell(events.AssignmentApplied(1, tuple(replica_spec(name) for name in "abcdefgh"), (peer_spec("eu-1", EU),)))
    tell(events.ReplicasObserved(tuple(ReplicaObservation(ReplicaId(name), 0, healthy=True) for name in "abcdefgh")))
    for number in range(requests):
        asked = profile(f"r{number}")
        arrival = (
            forward_from_eu(asked, 60 * SECOND, may_run=ANYWHERE)
            if number % 3 == 0
            else events.RequestArrived(asked, 60 * SECOND)
        )
        for start in of_kind(StartLeg, tell(arrival)):
            tell(events.LegAccepted(start.request_id, start.attempt, start.leg))
            tell(events.FirstToken(start.request_id, start.attempt, start.leg))
            tell(events.LegEnded(start.request_id, start.attempt, start.leg, LegResult.COMPLETED, output_tokens=9))
    tell(events.TargetLost(replica_target(ReplicaId("a")), "gone"))
    tell(events.DrainRequested())
    tell(events.TimePassed())
    return steps


def write_story(path: Path, steps: list[GatewayStep]) -> Path:
    path.write_bytes(encode_header(HEADER) + b"".join(encode_step(step) for step in steps))
    return path


def settings(folder: Path, *, file_bytes_max: int = 1 << 20, files_max: int = 4) -> JournalSettings:
    return JournalSettings(folder, file_bytes_max, files_max)


def keep(journal: GatewayJournal, steps: list[GatewayStep]) -> None:
    for step in steps:
        assert step.effects is not None
        tell_step(journal, step.now_ns, step.event, step.effects)


class TestPolicyFromOutside:
    """A replay decides by the same code, or not at all."""

    def told(self, folder: Path, version: str | None) -> Path:
        config = CoreConfig(PlacementConfig("replayed", version))
        core = GatewayCore(GATEWAY, US, seed=7, plug_ins=find_policy)
        story: list[Event] = [events.ConfigApplied(config), events.DrainRequested(), events.TimePassed()]
        steps = [Step(at, event, core.handle(event, at)) for at, event in enumerate(story)]
        return write_story(folder / "a.journal", steps)

    def test_it_is_told_again_by_the_version_that_the_journal_names(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(tmp_path, "replayed", name="replayed", version="1.4")
        monkeypatch.syspath_prepend(str(tmp_path))
        path = self.told(tmp_path, "1.4")
        assert b'"policy":"replayed","policy_version":"1.4"' in path.read_bytes()
        assert replay([path]).divergence is None
        with pytest.raises(JournalUnreadable, match=r"step 1 .*: of replayed, 1\.4 is installed and not 1\.3"):
            replay([self.told(tmp_path, "1.3")])

    def test_without_it_nothing_is_told(self, tmp_path: Path) -> None:
        step: GatewayStep = Step(0, events.ConfigApplied(CoreConfig(PlacementConfig("long_gone", "1"))), [])
        with pytest.raises(JournalUnreadable, match=r"step 1 .* placement\.policy: 'long_gone' is none of cost"):
            replay([write_story(tmp_path / "a.journal", [step])])


class TestReading:
    def test_every_step_comes_back_as_it_was(self, tmp_path: Path) -> None:
        steps = tell_story()
        header, read = read_journal(write_story(tmp_path / "a.journal", steps))
        assert header == HEADER
        assert list(read) == steps

    def test_a_story_written_twice_has_the_same_bytes(self) -> None:
        assert [encode_step(step) for step in tell_story()] == [encode_step(step) for step in tell_story()]

    def test_sets_are_written_in_order(self) -> None:
        names = [RegionName(f"region-{number:02}") for number in range(30)]
        process = PlaceRule(regions=frozenset(names))
        line = encode_step(Step(0, events.PolicyApplied(policy(US, process=process)), []))
        assert msgspec.json.encode(names) in line

    def test_a_last_line_that_was_cut_off_is_left_out(self, tmp_path: Path) -> None:
        path = write_story(tmp_path / "a.journal", tell_story())
        path.write_bytes(path.read_bytes()[:-5])
        assert len(list(read_journal(path)[1])) == len(tell_story()) - 1

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda text: b"",
            lambda text: b"{}\n" + text,
            lambda text: text.replace(f'"format":{FORMAT}'.encode(), b'"format":99', 1),
            lambda text: text.replace(b'"ConfigApplied"', b'"ConfigUnheardOf"', 1),
            lambda text: text.replace(b'"seed":7', b'"seed":"x"', 1),
            lambda text: text.replace(b"[0,", b"[zero,", 1),
        ],
    )
    def test_what_is_no_journal_is_refused(self, tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
        path = write_story(tmp_path / "a.journal", tell_story())
        path.write_bytes(spoil(path.read_bytes()))
        with pytest.raises(JournalUnreadable, match=r"a\.journal"):
            replay([path])

    def test_one_of_an_older_format_is_refused_by_its_number(self, tmp_path: Path) -> None:
        path = write_story(tmp_path / "a.journal", tell_story())
        path.write_bytes(path.read_bytes().replace(f'"format":{FORMAT}'.encode(), b'"format":1', 1))
        with pytest.raises(JournalUnreadable, match=rf"^a\.journal: is of format 1, and this version reads {FORMAT}$"):
            replay([path])

    def test_a_missing_file_is_unreadable(self, tmp_path: Path) -> None:
        with pytest.raises(JournalUnreadable):
            replay([tmp_path / "none"])


class TestReplaying:
    def test_the_same_story_is_equal(self, tmp_path: Path) -> None:
        steps = tell_story()
        report = replay([write_story(tmp_path / "a.journal", steps)])
        assert (report.steps, report.divergence) == (len(steps), None)

    def test_the_first_divergence_is_named(self, tmp_path: Path) -> None:
        steps = tell_story()
        at = next(i for i, step in enumerate(steps) if any(isinstance(each, StartLeg) for each in step.effects or []))
        steps[at] = replace(steps[at], effects=[])
        report = replay([write_story(tmp_path / "a.journal", steps)])
        assert report.divergence is not None
        assert report.divergence.step == at + 1
        assert report.divergence.expected == "nothing"
        assert "StartLeg" in report.divergence.got

    def test_another_seed_tells_another_story(self, tmp_path: Path) -> None:
        path = write_story(tmp_path / "a.journal", tell_story(60))
        path.write_bytes(path.read_bytes().replace(b'"seed":7', b'"seed":8', 1))
        assert replay([path]).divergence is not None

    def test_a_failure_of_the_core_is_found_again(self, tmp_path: Path) -> None:
        steps = tell_story()
        fatal: GatewayStep = Step(0, events.TimePassed(), None)  # time goes backwards
        report = replay([write_story(tmp_path / "a.journal", [*steps, fatal])])
        assert report.divergence is None

    def test_a_core_that_fails_only_now_has_diverged(self, tmp_path: Path) -> None:
        steps: list[GatewayStep] = [*tell_story(), Step(0, events.TimePassed(), [])]
        report = replay([write_story(tmp_path / "a.journal", steps)])
        assert report.divergence is not None
        assert "time went backwards" in report.divergence.got

    def test_the_steps_before_a_crash_are_no_story(self, tmp_path: Path) -> None:
        path = tmp_path / "crash.journal"
        write_tail(path, HEADER, [*tell_story(), Step(10**12, events.DrainRequested(), None)])
        assert list(read_journal(path)[1])[-1] == Step(10**12, events.DrainRequested(), None)
        with pytest.raises(JournalUnreadable, match="last steps before a crash"):
            replay([path])


class TestWhatIsNotSaid:
    """No journal reveals a client's text, and it replays all the same."""

    CLEAR = "tell me of the merger with acme " * 8

    def asked(self, number: int, **changes: object) -> RequestProfile:
        """Profile of a chat; chats share their beginnings, as real ones do."""
        made = profile(f"r{number}", prompt=self.CLEAR[: 64 + 16 * (number % 11)] + f" then {number % 3}" * 9)
        return replace(made, session_key=f"s{number % 5}", **changes)

    def story(self, policy_name: str) -> list[GatewayStep]:
        core = GatewayCore(GATEWAY, US, seed=7)
        steps: list[GatewayStep] = []

        def tell(event: Event) -> list[Effect]:
            effects = core.handle(event, len(steps) * 1_000_000)
            steps.append(Step(len(steps) * 1_000_000, event, list(effects)))
            return effects

        tenants = {TenantName("away"): TenantPolicy(rule(EU)), TENANT: TenantPolicy(ANYWHERE)}
        tell(events.ConfigApplied(CoreConfig(PlacementConfig(policy=policy_name, considered_max=5))))
        tell(events.PolicyApplied(policy(US, tenants=tenants)))
        tell(events.AssignmentApplied(1, tuple(replica_spec(name) for name in "abcd"), (peer_spec("eu-1", EU),)))
        running: list[StartLeg] = []
        for number in range(60):
            seen = tuple(ReplicaObservation(ReplicaId(name), len(steps) * 1_000_000, healthy=True) for name in "abcd")
            tell(events.ReplicasObserved(seen))
            asks: list[RequestProfile] = [self.asked(number)]
            if number % 7 == 0:
                asks.append(self.asked(1000 + number, tenant=TenantName("away")))
                asks.append(self.asked(2000 + number, model=ModelName("salary of bob")))
            for each in asks:
                running += of_kind(StartLeg, tell(events.RequestArrived(each, 60 * SECOND)))
            running += of_kind(StartLeg, tell(forward_from_eu(self.asked(3000 + number), 60 * SECOND)))
            tell(forward_from_eu(self.asked(4000 + number), 60 * SECOND, origin="nobody"))
            if number % 3 == 0 and running:
                leg = running.pop(0)
                tell(events.LegEnded(leg.request_id, leg.attempt, leg.leg, LegResult.COMPLETED, output_tokens=9))
        tell(events.DrainRequested())
        tell(events.RequestArrived(self.asked(5000, model=ModelName("salary of eve")), 60 * SECOND))
        return steps

    @pytest.mark.parametrize("policy_name", list(PlacementPolicy))
    def test_it_replays_equal_under_every_policy(self, tmp_path: Path, policy_name: str) -> None:
        steps = self.story(policy_name)
        journal = GatewayJournal(settings(tmp_path), HEADER, pytest.fail)
        keep(journal, steps)
        journal.close()
        report = replay(sorted(tmp_path.iterdir()))
        assert report.divergence is None
        assert report.steps == len(steps) > 200

    def test_what_a_peer_tells_of_its_caches_is_replayed_and_not_written_down(self, tmp_path: Path) -> None:
        core, now_ns = GatewayCore(GATEWAY, US, seed=7), 1_000_000
        asked = profile("a", prompt="salary of bob " * 4_000)
        config = CoreConfig(cache_digests=CacheDigestsConfig(enabled=True))
        eu = peer_spec("eu-1", EU)
        capacity = ModelCapacity(asked.model, DEFAULT_POOL, EU, replicas=1, available=1, room=1)
        heard = LoadReport(
            eu.gateway_id, EU, 1, accepting=True, assignment_version=1, policy_digest="", capacities=(capacity,)
        )
        happened: list[Event] = [
            events.ConfigApplied(config),
            events.PolicyApplied(policy(US)),
            events.AssignmentApplied(1, (replica_spec("a"),), (eu,)),
            events.ReplicasObserved((ReplicaObservation(ReplicaId("a"), now_ns, healthy=True),)),
            events.PeersObserved((PeerObservation(heard, now_ns, now_ns, 1_000_000, 1_000_000),)),
            events.DigestHeard(eu.gateway_id, DigestPart(True, 0, 1, asked.prefix, asked.prefix[:8])),
            events.RequestArrived(asked, 60 * SECOND),
        ]
        steps: list[GatewayStep] = [Step(now_ns, event, list(core.handle(event, now_ns))) for event in happened]
        (leg,) = of_kind(StartLeg, steps[-1].effects or [])
        assert leg.target.id == "eu-1"
        journal = GatewayJournal(settings(tmp_path), HEADER, pytest.fail)
        keep(journal, steps)
        journal.close()
        (path,) = tmp_path.iterdir()
        assert replay([path]).divergence is None
        (told,) = [each.event for each in read_journal(path)[1] if isinstance(each.event, events.DigestHeard)]
        assert len(told.part.added) == len(asked.prefix)
        written = told.part.added + told.part.removed
        clear = hashes_of(asked)
        assert not set(clear) & {written[at : at + 8] for at in range(0, len(written), 8)}

    def test_no_block_hash_of_the_prompt_is_in_it(self, tmp_path: Path) -> None:
        journal = GatewayJournal(settings(tmp_path), HEADER, pytest.fail)
        steps = self.story("prefix")
        keep(journal, steps)
        write_tail(tmp_path / "tail", journal.header, map(journal.told, steps))
        journal.close()
        arrivals = [
            each.event for each in steps if isinstance(each.event, events.RequestArrived | events.ForwardArrived)
        ]
        clear = {hash_ for arrival in arrivals for hash_ in hashes_of(arrival.profile)}
        assert len(clear) > 30
        for path in tmp_path.iterdir():
            text = path.read_bytes()
            assert b"salary" not in text
            said = [each.event for each in read_journal(path)[1]]
            told = [each for each in said if isinstance(each, events.RequestArrived | events.ForwardArrived)]
            names = {hash_ for arrival in told for hash_ in hashes_of(arrival.profile)}
            assert len(told) == len(arrivals)
            assert len(names) > 30
            assert not clear & names
            sessions = {arrival.profile.session_key for arrival in told}
            assert len(sessions) == 5
            assert not sessions & {f"s{number}" for number in range(5)}

    def test_who_is_turned_away_leaves_no_prefix(self, tmp_path: Path) -> None:
        journal = GatewayJournal(settings(tmp_path), HEADER, pytest.fail)
        keep(journal, self.story("prefix"))
        journal.close()
        for step in read_journal(tmp_path / "story-000000.journal")[1]:
            refused = of_kind(RefuseForward, step.effects or [])
            rejected = [each for each in of_kind(EndRequest, step.effects or []) if each.outcome.startswith("rejected")]
            if isinstance(step.event, events.RequestArrived | events.ForwardArrived):
                assert bool(step.event.profile.prefix) is not bool(refused or rejected)

    def test_the_key_is_nowhere(self, tmp_path: Path) -> None:
        key = bytes(range(100, 116))
        journal = GatewayJournal(settings(tmp_path), HEADER, pytest.fail, Pseudonyms(key))
        keep(journal, self.story("prefix"))
        journal.close()
        text = (tmp_path / "story-000000.journal").read_bytes()
        assert not any(form in text for form in (key, key.hex().encode(), b64encode(key).rstrip(b"=")))

    @pytest.mark.parametrize("policy_name", [PlacementPolicy.CONSISTENT_HASH, PlacementPolicy.SESSION_STICKY])
    def test_a_policy_that_goes_by_sessions_ends_one_that_kept_them_back(
        self, tmp_path: Path, policy_name: str
    ) -> None:
        stops: list[str] = []
        journal = GatewayJournal(settings(tmp_path), HEADER, stops.append)
        by_session: GatewayStep = Step(0, events.ConfigApplied(CoreConfig(PlacementConfig(policy_name))), [])
        keep(journal, [by_session])
        assert stops == [], "nobody has asked yet"
        keep(
            journal,
            [Step(0, events.ConfigApplied(CoreConfig()), []), Step(1, events.RequestArrived(self.asked(1), 9), [])],
        )
        keep(journal, [by_session])
        assert len(stops) == 1
        assert "session keys" in stops[0]
        journal.close()

    def test_its_files_are_not_for_everybody(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            journal = GatewayJournal(settings(tmp_path / "new"), HEADER, pytest.fail)
            write_tail(tmp_path / "new" / "a.crash", journal.header, [])
        finally:
            os.umask(before)
        journal.close()
        assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()} == {0o640}


def hashes_of(asked: RequestProfile) -> set[bytes]:
    return {asked.prefix[at : at + 8] for at in range(0, len(asked.prefix), 8)}


class TestWriting:
    def test_each_file_names_the_placement_policy_that_it_begins_under(self, tmp_path: Path) -> None:
        """A file of later steps, or the tail before a crash, may hold no config event."""
        journal = GatewayJournal(settings(tmp_path, file_bytes_max=1), HEADER, pytest.fail)
        asked = Step[Event, Effect](0, events.DrainRequested(), [])
        keep(journal, [Step(0, events.ConfigApplied(CoreConfig(PlacementConfig("packed", "1.4"))), [])])
        journal.close()
        write_tail(tmp_path / "tail", journal.header, [asked])
        named = [(header.policy, header.policy_version) for header, _ in map(read_journal, sorted(tmp_path.iterdir()))]
        assert named == [("cost", None), ("packed", "1.4"), ("packed", "1.4")]

    def test_what_was_kept_can_be_replayed(self, tmp_path: Path) -> None:
        stops: list[str] = []
        journal = GatewayJournal(settings(tmp_path), HEADER, stops.append)
        keep(journal, tell_story())
        journal.close()
        assert replay(sorted(tmp_path.iterdir())).divergence is None
        assert stops == []

    async def test_it_is_written_while_the_gateway_runs(self, tmp_path: Path) -> None:
        journal = GatewayJournal(settings(tmp_path), HEADER, pytest.fail)
        path = tmp_path / "story-000000.journal"
        first, *others = tell_story()
        keep(journal, [first])
        await journal.flush()
        assert replay([path]).steps == 1
        keep(journal, others)
        journal.close()
        assert replay([path]).steps == 1 + len(others)

    def test_the_fatal_step_is_kept(self, tmp_path: Path) -> None:
        journal = GatewayJournal(settings(tmp_path), HEADER, pytest.fail)
        keep(journal, tell_story())
        journal.on_crash(0, events.TimePassed())
        journal.close()
        assert replay(sorted(tmp_path.iterdir())).divergence is None

    def test_files_are_rotated_and_the_parts_are_one_story(self, tmp_path: Path) -> None:
        journal = GatewayJournal(settings(tmp_path, file_bytes_max=4000, files_max=100), HEADER, pytest.fail)
        keep(journal, tell_story())
        journal.close()
        files = sorted(tmp_path.iterdir())
        assert len(files) > 2
        assert replay(files[::-1]).divergence is None
        with pytest.raises(JournalUnreadable, match="not whole"):
            replay(files[1:])

    def test_files_of_different_runs_are_told_apart(self, tmp_path: Path) -> None:
        one = write_story(tmp_path / "one.journal", tell_story())
        two = tmp_path / "two.journal"
        two.write_bytes(encode_header(msgspec.structs.replace(HEADER, story="another", part=1)))
        with pytest.raises(JournalUnreadable, match="different runs"):
            replay([one, two])

    async def test_a_disk_too_full_for_another_file_leaves_a_story_that_can_be_replayed(self, tmp_path: Path) -> None:
        stops: list[str] = []
        journal = GatewayJournal(settings(tmp_path, file_bytes_max=4500, files_max=100), HEADER, stops.append)
        full = tmp_path / "story-000001.journal"
        full.symlink_to("/dev/full")
        keep(journal, tell_story())
        await journal.flush()
        assert len(stops) == 1
        assert "No space left" in stops[0]
        assert not full.is_symlink()
        report = replay([tmp_path / "story-000000.journal"])
        assert report.divergence is None
        assert 0 < report.steps < len(tell_story())


class TestClasses:
    def test_who_yields_is_told_again_as_it_was(self, tmp_path: Path) -> None:
        core = GatewayCore(GATEWAY, US, seed=7)
        story: list[Event] = [
            events.ConfigApplied(CoreConfig(tenants={TenantName("acme"): TenantConfig(weight=2.0)})),
            events.PolicyApplied(policy(US)),
            events.AssignmentApplied(1, (replica_spec("a"),), ()),
            events.ReplicasObserved((ReplicaObservation(ReplicaId("a"), 3, True, 2, 0, 0.95, 8192),)),
            events.RequestArrived(replace(profile("r"), service_class=ServiceClass.BATCH), 60 * SECOND),
        ]
        steps = [Step(at, event, list(core.handle(event, at))) for at, event in enumerate(story)]
        assert not of_kind(StartLeg, steps[-1].effects or []), "it waits for room"
        assert replay([write_story(tmp_path / "a.journal", steps)]).divergence is None

    def test_a_journal_of_before_there_were_classes_is_told_again(self, tmp_path: Path) -> None:
        path = write_story(tmp_path / "a.journal", tell_story())
        assert b'"service_class"' in path.read_bytes()
        head, *lines = path.read_bytes().splitlines()
        older = [msgspec.json.encode(_without(msgspec.json.decode(line))) for line in lines]
        path.write_bytes(b"\n".join([head, *older, b""]))
        report = replay([path])
        assert (report.divergence, report.steps) == (None, len(lines))


_NEW = frozenset({"service_class", "sharing", "tenants", "classes", "retry_after_ns"})


def _without(document: object) -> object:
    if isinstance(document, list):
        return [_without(each) for each in document]
    if not isinstance(document, dict):
        return document
    is_config = "placement" in document and "queue" in document
    gone = _NEW if is_config else _NEW - {"tenants"}  # a policy's tenants are older
    return {key: _without(each) for key, each in document.items() if key not in gone}


def test_what_targets_would_have_cost_is_told_again(tmp_path: Path) -> None:
    core = GatewayCore(GATEWAY, US, seed=7)
    story: list[Event] = [
        events.ConfigApplied(CoreConfig(PlacementConfig(PlacementPolicy.COST))),
        events.PolicyApplied(policy(US)),
        events.AssignmentApplied(1, (replica_spec("a"), replica_spec("b")), ()),
        events.ReplicasObserved(tuple(ReplicaObservation(ReplicaId(name), 3, True, 2, 1, 0.5, 8192) for name in "ab")),
        events.RequestArrived(profile("r"), 60 * SECOND),
    ]
    steps = [Step(at, event, list(core.handle(event, at))) for at, event in enumerate(story)]
    path = write_story(tmp_path / "a.journal", steps)
    assert b'"reading_ns"' in path.read_bytes()
    assert replay([path]).divergence is None
