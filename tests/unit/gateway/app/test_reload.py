from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from gateway.app.memory import fitted
from gateway.app.reload import PolicyPart, RegionPart, changed_at_rest
from gateway.config.reading import read_region_file
from gateway.config.sections import GatewayConfig, LimitsConfig
from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId
from gateway.security.keyring import Keyring
from gateway.security.keys import mint
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.faults import ConfigError
from mesh.logs import make_logger
from mesh.reloader import Reloader, ReloadRefused
from tests.fakes.engine import Tally
from tests.hostile.files import FILE_CASES, SECRET, TOO_LARGE, FileCase
from tests.support.background import in_background
from tests.support.clock import StillClock
from tests.support.core import AP, EU, US, policy, rule
from tests.support.gateways import write_policy
from tests.support.turned_files import restore, turn


@dataclass
class Bench:
    stream: io.StringIO = field(default_factory=io.StringIO)
    results: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def log(self) -> FilteringBoundLogger:
        return make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("g"), self.stream)

    def reloader(self, watch_s: float | None = None) -> Reloader:
        return Reloader(self.log, Clock(), watch_s=watch_s, on_reload=lambda *each: self.results.append(each))

    def reads(self, file: Path, read: Callable[[], None]) -> Reloader:
        made = self.reloader()
        made.add("a", read, lambda: [file])
        return made

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def refuse() -> None:
    raise ReloadRefused("a.yaml: colour: is not a known key\na.yaml: region: is missing")


class WallClock(StillClock):
    def wall_ns(self) -> int:
        return self.now


async def nothing() -> None:
    pass


class TestReloader:
    async def test_a_request_reads_every_part_whatever_became_of_those_before(self, bench: Bench) -> None:
        def fail() -> None:
            raise RuntimeError("a fault of ours")

        reloader = bench.reloader()
        reloader.add("first", refuse)
        reloader.add("second", fail)
        reloader.add("third", nothing)
        assert await reloader.reload() == ["first", "second"]
        assert bench.results == [("first", False), ("second", False), ("third", True)]

    async def test_a_refusal_is_loud_and_names_each_fault(self, bench: Bench) -> None:
        reloader = bench.reloader()
        reloader.add("region", refuse)
        await reloader.reload()
        (line,) = [line for line in bench.lines() if line["level"] == "error"]
        assert line["faults"] == ["a.yaml: colour: is not a known key", "a.yaml: region: is missing"]
        assert line["part"] == "region"

    async def test_a_refused_file_is_described_until_a_good_one_is_read(self, bench: Bench, tmp_path: Path) -> None:
        file = tmp_path / "a"
        clock = WallClock(now=5_000_000_000)
        is_good = False

        def read() -> None:
            if not is_good:
                refuse()

        reloader = Reloader(bench.log, clock)
        reloader.add("keys", read, lambda: [file])
        assert reloader.describe() == []
        await reloader.reload()
        clock.now += 1_000_000_000
        await reloader.reload()
        (refused,) = reloader.describe()
        assert (refused.part, refused.files, refused.since_ms) == ("keys", (str(file),), 5_000)
        assert refused.faults == ("a.yaml: colour: is not a known key", "a.yaml: region: is missing")
        is_good = True
        await reloader.reload()
        assert reloader.describe() == []

    async def test_a_part_that_fails_by_itself_is_described_as_well(self, bench: Bench) -> None:
        def fail() -> None:
            raise RuntimeError("a fault of ours")

        reloader = bench.reloader()
        reloader.add("part", fail)
        await reloader.reload()
        (refused,) = reloader.describe()
        assert refused.faults == ("an internal error, which the log has as reload_failed",)

    async def test_a_request_is_heard_while_it_runs(self, bench: Bench) -> None:
        read = Tally()
        reloader = bench.reloader()
        reloader.add("part", read.add)
        async with in_background(reloader.run()):
            reloader.request()
            await read.reaches(1)
            reloader.request()
            await read.reaches(2)

    async def test_watching_reads_what_changed_and_only_that(self, bench: Bench, tmp_path: Path) -> None:
        a, b = tmp_path / "a", tmp_path / "b"
        a.write_text("1")
        b.write_text("1")
        read_a, read_b = Tally(), Tally()
        reloader = bench.reloader(watch_s=0.001)
        reloader.add("a", read_a.add, lambda: [a])
        reloader.add("b", read_b.add, lambda: [b])
        async with in_background(reloader.run()):
            b.write_text("22")
            await read_b.reaches(1)
        assert (read_a.count, read_b.count) == (0, 1)

    async def test_a_file_is_left_alone_until_it_rests(self, bench: Bench, tmp_path: Path) -> None:
        file = tmp_path / "a"
        file.write_text("1")
        read = Tally()
        reloader = bench.reads(file, read.add)
        for size in (2, 3, 4):
            file.write_text("x" * size)
            await reloader.look()
            assert read.count == 0
        await reloader.look()
        assert read.count == 1
        await reloader.look()
        assert read.count == 1

    async def test_a_refused_file_is_read_again_only_when_it_changes(self, bench: Bench, tmp_path: Path) -> None:
        file = tmp_path / "a"
        file.write_text("1")
        reloader = bench.reads(file, refuse)
        file.write_text("22")
        await look(reloader, times=5)
        assert bench.results == [("a", False)]
        file.write_text("333")
        await look(reloader, times=5)
        assert bench.results == [("a", False)] * 2

    async def test_files_that_vanish_or_are_swapped_by_their_link_have_changed(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        for name in ("one", "two"):
            (tmp_path / name).write_text("same length")
            os.utime(tmp_path / name, ns=(1, 1))
        link = tmp_path / "link"
        link.symlink_to("one")
        read = Tally()
        reloader = bench.reads(link, read.add)
        link.unlink()
        await look(reloader, times=2)
        assert read.count == 1
        link.symlink_to("one")
        await look(reloader, times=2)
        link.unlink()
        link.symlink_to("two")
        await look(reloader, times=2)
        assert read.count == 3

    async def test_one_that_may_be_read_now_is_read_again(self, bench: Bench, tmp_path: Path) -> None:
        """A change of owner or mode leaves the file's time and size as they were."""
        file = tmp_path / "a"
        file.write_text("1")
        reloader = bench.reads(file, refuse)
        file.chmod(0o400)
        await look(reloader, times=3)
        assert bench.results == [("a", False)]

    async def test_a_file_that_changes_while_it_is_read_is_read_again(self, bench: Bench, tmp_path: Path) -> None:
        file = tmp_path / "a"
        file.write_text("1")
        contents: list[str] = []

        def read() -> None:
            contents.append(file.read_text())
            if len(contents) == 1:
                file.write_text("4444")

        reloader = bench.reads(file, read)
        file.write_text("22")
        await look(reloader, times=4)
        assert contents == ["22", "4444"]


async def look(reloader: Reloader, *, times: int) -> None:
    for _ in range(times):
        await reloader.look()


class Region:
    """A region file that a test edits."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "us.yaml"
        self.key = folder / "key"
        self.key.write_text("first-key")
        self.document: dict[str, object] = {
            "gateway": "us-1",
            "region": US.region,
            "jurisdiction": US.jurisdiction,
            "policy": str(write_policy(folder, US)),
            "replicas": [{"id": "a", "url": "http://127.0.0.1:1", "models": ["llama"], "api_key_file": "key"}],
        }
        self.applied: list[GatewayConfig] = []
        self.write()
        self.part = RegionPart(read_region_file(self.path), self.apply)

    async def apply(self, config: GatewayConfig) -> None:
        self.applied.append(config)

    def write(self, **changes: object) -> None:
        self.document |= changes
        self.path.write_text(yaml.safe_dump(self.document))

    async def refusal(self) -> list[str]:
        with pytest.raises(ReloadRefused) as caught:
            await self.part.reload()
        assert self.applied == []
        return str(caught.value).splitlines()


@pytest.fixture
def region(tmp_path: Path) -> Region:
    return Region(tmp_path)


class TestRegion:
    async def test_what_can_change_is_applied_whole(self, region: Region) -> None:
        region.write(queue={"wait_max": "5s"}, peers=[])
        await region.part.reload()
        (config,) = region.applied
        assert config.core.queue.wait_max_ns == 5_000_000_000

    async def test_a_file_that_is_wrong_changes_nothing_and_says_why(self, region: Region) -> None:
        region.write(colour="blue", queue={"wait_max": 5})
        assert sorted(await region.refusal()) == [
            "us.yaml: line 1: colour: is not a known key",
            "us.yaml: line 6: queue.wait_max: 5 is not a duration such as 100ms or 2s",
        ]

    async def test_what_needs_a_restart_is_refused_by_its_key_with_all_the_rest(self, region: Region) -> None:
        region.write(
            listen={"http": "127.0.0.1:9"}, gateway="us-2", limits={"body_max": "1MiB"}, queue={"wait_max": "5s"}
        )
        assert sorted(await region.refusal()) == [
            "us.yaml: line 1: gateway: cannot change while the gateway runs",
            "us.yaml: line 4: limits.body_max: cannot change while the gateway runs",
            "us.yaml: line 6: listen.http: cannot change while the gateway runs",
        ]

    async def test_limits_that_were_fitted_to_the_machine_stay_when_there_are_more_peers(self, region: Region) -> None:
        running = fitted(read_region_file(region.path), 4 * 2**30)
        part = RegionPart(running, region.apply)
        peer = {"gateway": "eu-1", "region": EU.region, "jurisdiction": EU.jurisdiction, "address": "127.0.0.1:7071"}
        region.write(peers=[peer])
        await part.reload()
        (config,) = region.applied
        assert config.limits == running.as_config().limits
        assert config.limits.requests_max < LimitsConfig().requests_max
        region.write(limits={"requests_max": 10_000})
        with pytest.raises(ReloadRefused, match=r"limits\.requests_max: cannot change while the gateway runs"):
            await part.reload()

    async def test_a_policy_file_that_cannot_be_used_is_not_moved_to(self, region: Region, tmp_path: Path) -> None:
        region.write(policy=str(write_policy(tmp_path, EU)))
        (fault,) = await region.refusal()
        assert fault.startswith("us.yaml: line 3: policy: ")

    async def test_what_cannot_be_put_in_force_is_refused(self, region: Region) -> None:
        async def refuse_all(_: GatewayConfig) -> None:
            raise ConfigError("tls: ca.pem cannot be used")

        part = RegionPart(read_region_file(region.path), refuse_all)
        with pytest.raises(ReloadRefused, match=r"tls: ca\.pem cannot be used"):
            await part.reload()

    async def test_keys_are_read_anew_without_the_region_file(self, region: Region) -> None:
        assert region.part.credential_files() == [region.key.resolve()]
        region.key.write_text("second-key")
        region.path.write_text("not yet: finished")
        await region.part.reload_credentials()
        (config,) = region.applied
        assert config.replicas[0].api_key == "second-key"
        assert config.core == read_config(region).core

    async def test_the_region_file_is_watched_only_on_demand(self, region: Region) -> None:
        assert region.part.files() == []
        region.write(reload={"region_file": True})
        assert RegionPart(read_region_file(region.path), region.apply).files() == [region.path]

    def test_documents_are_compared_key_by_key(self, region: Region) -> None:
        before = read_region_file(region.path)
        region.write(replicas=[], limits={"drain": "1s"}, journal={"folder": "j"})
        assert changed_at_rest(before, read_region_file(region.path)) == ["limits.drain", "journal.folder"]
        assert changed_at_rest(before, before) == []


def read_config(region: Region) -> GatewayConfig:
    region.write()
    return read_region_file(region.path).as_config()


class TestPolicy:
    def part(self, path: Path | None, bench: Bench) -> tuple[PolicyPart, list[ResidencyPolicy]]:
        applied: list[ResidencyPolicy] = []
        part = PolicyPart(path, US, applied.append, bench.log)
        part.start()
        return part, applied

    async def test_a_changed_policy_is_applied_and_an_unchanged_one_is_not(self, bench: Bench, tmp_path: Path) -> None:
        part, applied = self.part(write_policy(tmp_path, US), bench)
        await part.reload()
        assert len(applied) == 1
        write_policy(tmp_path, US, process=[US])
        await part.reload()
        assert len(applied) == 2
        assert not applied[1].closed_reason

    @pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("version: 1\n")])
    async def test_one_that_cannot_be_read_closes_the_region_loudly(
        self, bench: Bench, tmp_path: Path, spoil: Callable[[Path], object]
    ) -> None:
        path = write_policy(tmp_path, US)
        part, applied = self.part(path, bench)
        spoil(path)
        await part.reload()
        assert applied[-1].closed_reason
        assert any(line["event"] == "residency_policy_invalid" for line in bench.lines())
        write_policy(tmp_path, US)
        await part.reload()
        assert applied[-1] == applied[0]

    async def test_where_none_is_named_that_is_said_calmly_and_once(self, bench: Bench) -> None:
        """The smallest region file has no policy, and that is no fault."""
        part, applied = self.part(None, bench)
        await part.reload()
        assert applied[0].closed_reason == "no policy file is configured"
        (line,) = bench.lines()
        assert (line["level"], line["event"]) == ("info", "residency_policy_absent")

    async def test_one_that_stays_unreadable_is_told_of_at_every_look(self, bench: Bench, tmp_path: Path) -> None:
        part, _ = self.part(tmp_path / "missing.yaml", bench)
        await part.reload()
        assert [line["level"] for line in bench.lines()] == ["error", "error"]

    async def test_what_a_controller_narrows_it_by_outlives_reloads_and_ends_when_it_says_so(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        part, applied = self.part(write_policy(tmp_path, US, process=[US, EU], accept=[EU]), bench)
        at_home = replace(policy(US, process=rule(US), accept=rule(AP)), digest="mesh")
        part.narrow(at_home)
        part.narrow(replace(at_home))
        assert len(applied) == 2
        assert not applied[1].process.allows(EU)
        assert not applied[1].accept.allows(EU)
        assert applied[1].digest == f"{applied[0].digest}+mesh"
        assert bench.lines()[-1]["narrowed_by"] == "mesh"
        write_policy(tmp_path, US, process=[US, EU], accept=[EU, AP])
        await part.reload()
        assert not applied[2].process.allows(EU)
        assert applied[2].accept.allows(AP)
        part.narrow(None)
        assert applied[3].process.allows(EU)
        assert applied[3].narrowed_by == ""

    async def test_what_it_is_narrowed_by_before_it_was_read_holds_from_the_start(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        applied: list[ResidencyPolicy] = []
        part = PolicyPart(write_policy(tmp_path, US, process=[US, EU]), US, applied.append, bench.log)
        part.narrow(policy(US, process=rule(US)))
        assert applied == []
        part.start()
        assert [each.process.allows(EU) for each in applied] == [False]

    async def test_a_closed_one_of_the_controller_closes_the_region_loudly(self, bench: Bench, tmp_path: Path) -> None:
        part, applied = self.part(write_policy(tmp_path, US), bench)
        part.narrow(policy(EU))
        assert applied[-1].closed_reason.startswith("the controller's policy is closed: it is for eu-west-1 (EU)")
        assert bench.lines()[-1]["event"] == "residency_policy_invalid"
        assert bench.lines()[-1]["reason"] == applied[-1].closed_reason

    async def test_who_follows_the_region_s_own_is_not_told_what_narrows_it(self, bench: Bench, tmp_path: Path) -> None:
        part, applied = self.part(write_policy(tmp_path, US, process=[US, EU]), bench)
        told: list[ResidencyPolicy] = []
        part.follow_own(told.append)
        part.narrow(policy(US, process=rule(US)))
        assert told == [applied[0]]
        write_policy(tmp_path, US, process=[US, AP])
        await part.reload()
        assert [each.process.allows(AP) for each in told] == [False, True]
        assert {each.narrowed_by for each in told} == {""}

    async def test_it_follows_the_region_file_to_another_path(self, bench: Bench, tmp_path: Path) -> None:
        part, applied = self.part(None, bench)
        assert applied[0].closed_reason == "no policy file is configured"
        path = write_policy(tmp_path, US)
        part.move(path)
        assert not applied[1].closed_reason
        assert part.files() == [path]
        part.move(path)
        assert len(applied) == 2


OF_PLAIN_FILES = ("anchors and aliases", "tags are not allowed", TOO_LARGE)
"""Faults that end the reading of a policy before the fault of a case is met."""
TOLD_BYTES_MAX = 1 << 20
"""Bound on all that is logged of one file."""


@pytest.mark.parametrize("case", FILE_CASES, ids=lambda case: case.name)
class TestHostileFiles:
    """Reading a file always ends, whatever the file becomes, and reports which file was refused and why."""

    async def test_the_keys_before_stay(self, case: FileCase, bench: Bench, tmp_path: Path) -> None:
        path = tmp_path / "keys.yaml"
        key, kept = mint("a")
        path.write_text(yaml.safe_dump({"keys": [{"id": "a", "hash": str(kept), "tenant": "acme"}]}))
        good, keyring = path.read_bytes(), Keyring(path, Clock())
        told = await told_of(path, case, bench, keyring.reload)
        assert bench.results == [("watched", False)]
        assert told.startswith("keys.yaml: ")
        assert case.fault in told
        assert keyring.check(key) is not None
        await self.back(path, good, bench, keyring.reload)

    async def test_the_region_file_before_stays(self, case: FileCase, bench: Bench, region: Region) -> None:
        good = region.path.read_bytes()
        told = await told_of(region.path, case, bench, region.part.reload)
        assert bench.results == [("watched", False)]
        assert told.startswith("us.yaml: ")
        assert case.fault in told
        assert region.applied == []
        await self.back(region.path, good, bench, region.part.reload)
        assert len(region.applied) == 1

    async def test_the_region_is_closed(self, case: FileCase, bench: Bench, tmp_path: Path) -> None:
        applied: list[ResidencyPolicy] = []
        path = write_policy(tmp_path, US)
        good, part = path.read_bytes(), PolicyPart(path, US, applied.append, bench.log)
        part.start()
        told = await told_of(path, case, bench, part.reload)
        assert any(fault in told for fault in (case.fault, *OF_PLAIN_FILES))
        assert str(path) in applied[-1].closed_reason
        await self.back(path, good, bench, part.reload)
        assert applied[-1] == applied[0]

    async def back(self, path: Path, good: bytes, bench: Bench, reload: Callable[[], Awaitable[None]]) -> None:
        """Assert that the restored file is accepted again."""
        restore(path, good)
        reloader = bench.reloader()
        reloader.add("restored", reload, lambda: [path])
        assert await reloader.reload() == []


async def told_of(path: Path, case: FileCase, bench: Bench, reload: Callable[[], Awaitable[None]]) -> str:
    """Watch a file while it changes; return the reason why it is refused, which holds no secret."""
    reloader = bench.reloader()
    reloader.add("watched", reload, lambda: [path])
    turn(path, case)
    async with asyncio.timeout(60):
        await look(reloader, times=3)
    logged = bench.stream.getvalue()
    assert SECRET not in logged
    assert len(logged) < TOLD_BYTES_MAX
    (line,) = [line for line in bench.lines() if line["level"] == "error"]
    why = line.get("faults", line.get("reason"))
    assert isinstance(why, str | list)
    told = why if isinstance(why, str) else "\n".join(why)
    assert all(each.isprintable() for each in told.splitlines())
    return told
