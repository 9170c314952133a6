from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from gateway.config.sections import AuditConfig, AuditSync
from gateway.core.kernel.effects import EndRequest
from gateway.core.kernel.events import AssignmentApplied, PolicyApplied
from gateway.core.kernel.residency import LoggingRule, closed_policy
from gateway.core.vocabulary import (
    GatewayId,
    Hops,
    LegResult,
    ModelName,
    Outcome,
    ReplicaId,
    RequestId,
    TenantName,
)
from gateway.records import audit
from gateway.records.audit import UNAVAILABLE, Audit, AuditLevels
from gateway.records.audit_heads import Witness, read_noted
from gateway.records.audit_verify import gaps_between, verify_file
from gateway.request.legs import RanAt, RequestSummary
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.support.core import (
    AP,
    EU,
    MS,
    SECOND,
    US,
    Desk,
    desk,
    occupy,
    peer_spec,
    policy,
    profile,
    replica_spec,
    rule,
)
from tests.support.followed import FAILS, Followed
from tests.support.threads import threads_taken

GATEWAY = GatewayId("us-1")
ACME = TenantName("acme")


class Still(Clock):
    def wall_time(self) -> str:
        return "2026-03-01T12:00:00Z"


class Office(Followed):
    """A core and its audit log."""

    def __init__(self, core: Desk, folder: Path, **settings: object) -> None:
        super().__init__(core)
        self.folder = folder
        self.stream = io.StringIO()
        log = make_logger(LoggingConfig(format=LogFormat.JSON), GATEWAY, self.stream)
        config = replace(AuditConfig(folder=folder), **settings)
        serves = self.desk.core.replicas.groups.serves
        self.audit = Audit(config, GATEWAY, US, serves=serves, clock=Still(), log=log)
        self.audit.begin()
        self.finished.hand_to(self.audit.on_finished)
        self.refused.append(self.audit.on_refused)
        self.watch()

    def lines(self) -> list[dict[str, Any]]:
        """All lines written, after closing."""
        self.audit.close()
        paths = sorted(self.folder.iterdir())
        checked = [verify_file(path) for path in paths]
        assert [each for file in checked for each in file.broken] + gaps_between(checked) == []
        found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return [each for each in found if each["kind"] != "file"]

    def log(self) -> list[tuple[str, str]]:
        """Log entries except those about the chain's head."""
        lines = map(json.loads, self.stream.getvalue().splitlines())
        return [(line["level"], line["event"]) for line in lines if line["event"] != "audit_head_sealed"]


async def test_a_local_request_is_recorded_with_its_policy_and_rule(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path)
    office.ask("r-1")
    office.end("r-1")
    office.finish("r-1", RanAt(ReplicaId("r0"), US))
    (line,) = office.lines()
    del line["prev"]
    assert line == {
        "kind": "request",
        "time": "2026-03-01T12:00:00Z",
        "gateway": "us-1",
        "region": "us-east-1",
        "jurisdiction": "US",
        "request": "r-1",
        "tenant": "default",
        "model": "llama",
        "origin": {"region": "us-east-1", "jurisdiction": "US"},
        "policy": "policy-of-us-east-1",
        "rule": "process names jurisdiction US",
        "outcome": "completed",
        "attempts": [
            {
                "target": "replica:r0",
                "region": "us-east-1",
                "jurisdiction": "US",
                "policy": "policy-of-us-east-1",
                "rule": "process names jurisdiction US",
                "result": "completed",
                "place_by": "region_file",
                "ran_ms": 0,
            }
        ],
        "processed": {"replica": "r0", "region": "us-east-1", "jurisdiction": "US"},
        "prompt_bytes": 5,
        "prompt_tokens": 0,
        "output_tokens": 0,
    }


async def test_every_region_that_was_sent_the_request_is_named_failed_or_not(tmp_path: Path) -> None:
    core = desk(replicas=0, peers=[peer_spec("eu-1", EU), peer_spec("ap-1", AP)])
    office = Office(core, tmp_path)
    core.hear("eu-1", EU, rtt_ms=10)
    core.hear("ap-1", AP, rtt_ms=100)
    office.ask("r-1")
    office.end("r-1", LegResult.FAILED)
    office.end("r-1", attempt=2)
    office.finish("r-1", RanAt(ReplicaId("ap-a"), AP))
    (line,) = office.lines()
    attempts = [(each["target"], each["region"], each["rule"], each["result"]) for each in line["attempts"]]
    assert attempts == [
        ("peer:eu-1", "eu-west-1", "process names jurisdiction EU", "failed"),
        ("peer:ap-1", "ap-northeast-1", "process names jurisdiction JP", "completed"),
    ]
    assert line["processed"]["region"] == "ap-northeast-1"


async def test_the_receiver_records_the_origin_its_stamp_and_its_own_reason(tmp_path: Path) -> None:
    office = Office(desk(peers=[peer_spec("eu-1", EU)]), tmp_path)
    office.forward("f-1")
    office.end("f-1")
    office.finish("f-1", RanAt(ReplicaId("r0"), US))
    (line,) = office.lines()
    assert (line["origin"]["region"], line["origin_gateway"]) == ("eu-west-1", "eu-1")
    assert (line["hops_cross_region"], line.get("hops_in_region", 0)) == (1, 0)
    assert (line["policy"], line["rule"]) == ("policy-of-us-east-1", "accept names jurisdiction EU")
    (attempt,) = line["attempts"]
    assert (attempt["policy"], attempt["rule"]) == ("digest-of-eu", "process names region us-east-1")


async def test_a_refused_forward_was_seen_here_and_is_recorded(tmp_path: Path) -> None:
    office = Office(desk(peers=[peer_spec("eu-1", EU)]), tmp_path)
    office.forward("f-1", hops=Hops(0, 2))
    (line,) = office.lines()
    assert line["outcome"] == "refused_hop_limit"
    assert "attempts" not in line


async def test_the_policy_says_whether_a_tenant_is_named(tmp_path: Path) -> None:
    for named in (False, True):
        folder = tmp_path / str(named)
        core = desk(own_policy=replace(policy(US), logging=LoggingRule(tenant=named)))
        office = Office(core, folder)
        office.ask("r-1", tenant=ACME)
        office.end("r-1")
        office.finish("r-1")
        (line,) = office.lines()
        assert line.get("tenant") == ("acme" if named else None)


async def test_a_name_that_only_the_client_knows_is_not_written_down(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path)
    office.ask("r-1", model=ModelName("my credit card is 4111"))
    office.finish("r-1")
    (line,) = office.lines()
    assert line["outcome"] == "rejected_unknown_model"
    assert "4111" not in json.dumps(line)


async def test_a_rejection_at_the_door_says_which_rule(tmp_path: Path) -> None:
    office = Office(desk(own_policy=closed_policy(US, "no file")), tmp_path)
    office.ask("r-1", process=rule(EU))
    office.finish("r-1")
    (line,) = office.lines()
    assert line["outcome"] == "rejected_residency_ingress"
    assert line["rule"] == "the key's own rule: process names neither region us-east-1 nor jurisdiction US"


async def test_a_policy_that_changes_meanwhile_is_told_apart(tmp_path: Path) -> None:
    core = desk()
    occupy(core)
    office = Office(core, tmp_path)
    office.ask("r-1")
    office.tell(PolicyApplied(replace(policy(US), digest="the next")))
    office.probe()
    office.end("r-1")
    office.finish("r-1")
    (line,) = office.lines()
    assert (line["policy"], line["attempts"][0]["policy"]) == ("policy-of-us-east-1", "the next")


async def test_what_came_after_a_crash_of_the_core_is_not_made_up(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path)
    end = EndRequest(RequestId("r-1"), Outcome.FAILED_BEFORE_FIRST_BYTE, "crash", 0)
    office.finished.on_finished(profile("r-1"), end, RequestSummary(), None)
    assert office.lines() == []


async def test_one_that_a_crash_of_the_core_ended_is_recorded_with_where_it_was_sent(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path)
    office.ask("r-1")
    end = EndRequest(RequestId("r-1"), Outcome.FAILED_BEFORE_FIRST_BYTE, "crash", 0)
    office.finished.on_finished(office.profiles["r-1"], end, RequestSummary(), office.requests[RequestId("r-1")])
    (line,) = office.lines()
    (attempt,) = line["attempts"]
    assert (line["outcome"], attempt["result"]) == ("failed_before_first_byte", "open")
    assert "ran_ms" not in attempt


async def test_a_place_is_recorded_with_its_source_when_the_leg_started(tmp_path: Path) -> None:
    spec = replace(replica_spec("r9"), place_by="announced_by:eu-1")
    core = desk(replicas=0)
    office = Office(core, tmp_path)
    office.tell(AssignmentApplied(9, (spec,), ()))
    core.probe()
    office.ask("r-1")
    office.tell(AssignmentApplied(10, (), ()))
    office.end("r-1")
    office.finish("r-1")
    (line,) = office.lines()
    assert [each["place_by"] for each in line["attempts"]] == ["announced_by:eu-1"]


@pytest.mark.parametrize("failing", [1, 2])
async def test_of_two_legs_each_is_named_with_its_number(tmp_path: Path, failing: int) -> None:
    office = Office(desk(), tmp_path)
    office.two_legs("r-1")
    office.first_token("r-1")
    office.two_ends("r-1", FAILS[failing])
    office.finish("r-1")
    (line,) = office.lines()
    told = [(each["target"], each["leg"], each["result"]) for each in line["attempts"]]
    assert told == [("replica:r0", 1, FAILS[failing][0]), ("replica:r1", 2, FAILS[failing][1])]


def sample(office: Office, name: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(AuditLevels(office.audit))
    return registry.get_sample_value(f"nightside_audit_{name}")


async def test_a_disk_that_fails_is_told_once_and_nothing_is_lost(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path / "audit")
    shutil.rmtree(office.folder)
    office.serve("a", "b")
    for _ in range(2):
        await office.audit.flush()
    assert office.audit.is_failing
    assert office.audit.refusal == "", "it is not required"
    assert sample(office, "failing") == 1
    assert (sample(office, "unwritten_bytes") or 0) > 0
    office.folder.mkdir()
    await office.audit.flush()
    assert not office.audit.is_failing
    assert sample(office, "failing") == 0
    assert sample(office, "lines_total") == 2
    assert [line["request"] for line in office.lines()] == ["a", "b"]
    assert office.log() == [
        ("critical", "audit_write_failed"),
        ("warning", "audit_write_recovered"),
    ]


async def test_where_it_is_required_a_failing_record_closes_the_door_until_it_is_written_again(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path / "audit", required=True)
    assert office.audit.refusal == ""
    shutil.rmtree(office.folder)
    office.serve("a")
    await office.audit.flush()
    assert office.audit.refusal == UNAVAILABLE
    office.folder.mkdir()
    await office.audit.flush()
    assert office.audit.refusal == ""
    office.audit.close()


async def test_what_cannot_be_held_is_counted_and_the_files_say_so(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path / "audit", unwritten_max_bytes=1500)
    shutil.rmtree(office.folder)
    await office.audit.flush()
    office.serve(*map(str, range(10)))
    lost = office.audit.lines_lost
    assert 0 < lost < 10
    assert office.audit.is_failing
    office.folder.mkdir()
    await office.audit.flush()
    lines = office.lines()
    assert [line["request"] for line in lines[:-1]] == [str(number) for number in range(10 - lost)]
    assert (lines[-1]["kind"], lines[-1]["lines"]) == ("lost", lost)
    assert sample(office, "lines_lost_total") == lost


async def test_lines_are_written_while_it_runs(tmp_path: Path) -> None:
    for sync in AuditSync:
        office = Office(desk(), tmp_path / sync, sync=sync, flush_interval_ns=1 * MS)
        (path,) = office.folder.iterdir()
        running = asyncio.get_running_loop().create_task(office.audit.run())
        for count in (1, 2):
            office.serve(str(count))
            while len(path.read_bytes().splitlines()) < 1 + count:  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.001)
        running.cancel()
        office.audit.close()


async def test_with_a_flush_for_every_line_no_time_has_to_pass(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path, sync=AuditSync.LINE, flush_interval_ns=3600 * SECOND)
    (path,) = office.folder.iterdir()
    running = asyncio.get_running_loop().create_task(office.audit.run())
    office.serve("a")
    while len(path.read_bytes().splitlines()) < 2:  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.001)
    running.cancel()
    office.audit.close()


async def test_what_a_thread_has_yet_to_write_is_there_after_the_end(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path, sync=AuditSync.LINE)
    with threads_taken() as free:
        running = asyncio.get_running_loop().create_task(office.audit.run())
        office.serve("a")
        while office.audit.unwritten_bytes:  # noqa: ASYNC110 - taken up by a thread is nothing to wait for
            await asyncio.sleep(0)
        running.cancel()
        asyncio.get_running_loop().call_soon(free)
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [line["request"] for line in office.lines()] == ["a"]


async def test_a_disk_that_fails_while_the_writing_is_cancelled_is_told_too(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path / "audit")
    office.serve("a")
    shutil.rmtree(office.folder)
    with threads_taken() as free:
        flushing = asyncio.get_running_loop().create_task(office.audit.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        asyncio.get_running_loop().call_soon(free)
        with pytest.raises(asyncio.CancelledError):
            await flushing
    assert office.audit.is_failing
    office.folder.mkdir()
    assert [line["request"] for line in office.lines()] == ["a"]
    assert office.log() == [
        ("critical", "audit_write_failed"),
        ("warning", "audit_write_recovered"),
    ]


async def test_what_was_lost_before_the_end_is_in_the_files_too(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path / "audit", unwritten_max_bytes=1500)
    office.serve(*map(str, range(10)))
    lost = office.audit.lines_lost
    assert lost > 0
    last = office.lines()[-1]
    assert (last["kind"], last["lines"]) == ("lost", lost)


async def test_deleting_the_oldest_file_is_told(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path, file_max_bytes=1000, files_max=1)
    office.serve(*map(str, range(4)))
    assert [line["request"] for line in office.lines()] == ["3"]
    assert ("warning", "audit_file_deleted") in office.log()


async def test_lines_that_cannot_be_written_at_the_end_are_told(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path / "audit")
    shutil.rmtree(office.folder)
    office.serve("a")
    office.audit.close()
    assert ("critical", "audit_lines_lost") in office.log()


async def test_where_the_chain_stands_is_logged_to_be_noted(tmp_path: Path) -> None:
    office = Office(desk(), tmp_path / "audit")
    office.serve("a")
    await office.audit.flush()
    office.serve("b")
    await office.audit.flush()
    office.audit.close()
    log = tmp_path / "log"
    log.write_text(office.stream.getvalue())
    heads = read_noted(log)
    assert [head.line for head in heads] == [2, 3], "not with every writing, and at the end"
    (path,) = (tmp_path / "audit").iterdir()
    whole = path.read_bytes()
    assert verify_file(path, Witness(noted=heads)).broken == ()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    (broken,) = verify_file(path, Witness(noted=heads)).broken
    assert "line 3 had been written" in broken.problem


class TestTakingOver:
    """The chain of one process is continued in another's files, with the lines of both."""

    async def test_lines_of_the_process_before_are_written_by_the_one_that_has_the_chain(self, tmp_path: Path) -> None:
        old, told = Office(desk(), tmp_path), list[list[bytes]]()
        finish(old, "r-1")
        await old.audit.release()
        finish(old, "r-2")
        await old.audit.flush()
        assert old.audit.unwritten_bytes > 0, "held, until it is known who takes it"
        new = Office(desk(), tmp_path)
        old.audit.tell(told.append, lambda: False)
        await old.audit.flush()
        finish(old, "r-3")
        old.audit.close()
        for lines in told:
            new.audit.take_over(lines)
        finish(new, "r-4")
        assert [line["request"] for line in new.lines()] == ["r-1", "r-2", "r-3", "r-4"]

    @pytest.mark.parametrize("is_told", [False, True], ids=["taken back", "gone while it was told"])
    async def test_where_the_other_process_has_gone_nothing_is_lost_or_written_twice(
        self, tmp_path: Path, is_told: bool
    ) -> None:
        def gone(_: list[bytes]) -> None:
            raise OSError("it is gone")

        office = Office(desk(), tmp_path)
        finish(office, "r-1")
        await office.audit.release()
        finish(office, "r-2")
        if is_told:
            office.audit.tell(gone, lambda: True)
            await office.audit.flush()
        else:
            office.audit.take_back()
        finish(office, "r-3")
        assert [line["request"] for line in office.lines()] == ["r-1", "r-2", "r-3"]

    async def test_lines_are_held_while_a_process_that_hears_nothing_has_the_chain(self, tmp_path: Path) -> None:
        def gone(_: list[bytes]) -> None:
            raise OSError("it reads nothing")

        office, ended = Office(desk(), tmp_path), False
        await office.audit.release()
        office.audit.tell(gone, lambda: ended)
        finish(office, "r-1")
        await office.audit.flush()
        assert (office.audit.is_released, office.audit.fault) == (True, "it reads nothing")
        finish(office, "r-2")
        ended = True
        await office.audit.flush()
        assert [line["request"] for line in office.lines()] == ["r-1", "r-2"]

    async def test_what_another_process_still_has_at_the_end_is_said_to_be_lost(self, tmp_path: Path) -> None:
        def gone(_: list[bytes]) -> None:
            raise OSError("it reads nothing")

        office = Office(desk(), tmp_path)
        await office.audit.release()
        office.audit.tell(gone, lambda: False)
        finish(office, "r-1")
        assert office.lines() == []
        assert ("critical", "audit_lines_lost") in office.log()

    async def test_a_chain_that_cannot_be_begun_again_is_tried_with_each_flush(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError("the folder is read-only")

        office = Office(desk(), tmp_path)
        await office.audit.release()
        with monkeypatch.context() as patch:
            patch.setattr(audit, "ChainedFiles", refuse)
            office.audit.take_back()
            finish(office, "r-1")
            await office.audit.flush()
        assert (office.audit.is_released, office.audit.fault) == (True, "the folder is read-only")
        await office.audit.flush()
        assert (office.audit.is_released, office.audit.fault) == (False, "")
        assert [line["request"] for line in office.lines()] == ["r-1"]

    async def test_lines_are_told_in_messages_of_bounded_size(self, tmp_path: Path) -> None:
        office, told = Office(desk(), tmp_path), list[list[bytes]]()
        await office.audit.release()
        office.audit.tell(told.append, lambda: False)
        large = [b"a" * (1 << 20)] * 9
        office.audit.take_over(large)
        await office.audit.flush()
        assert [len(lines) for lines in told] == [4, 4, 1]

    async def test_what_could_not_be_told_at_the_end_is_written_at_the_end(self, tmp_path: Path) -> None:
        def gone(_: list[bytes]) -> None:
            raise OSError("it is gone")

        office = Office(desk(), tmp_path)
        await office.audit.release()
        office.audit.tell(gone, lambda: True)
        finish(office, "r-1")
        assert [line["request"] for line in office.lines()] == ["r-1"]


def finish(office: Office, request_id: str) -> None:
    office.ask(request_id)
    office.end(request_id)
    office.finish(request_id, RanAt(ReplicaId("r0"), US))


async def test_the_chain_is_released_once_the_flush_that_runs_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Office(desk(), tmp_path)
    gate, begun = asyncio.Event(), []

    async def in_thread(work: Callable[..., object], *arguments: object) -> object:
        begun.append(work.__name__)
        await gate.wait()
        return work(*arguments)

    monkeypatch.setattr(audit, "finish_in_thread", in_thread)
    office.ask("r-1")
    office.end("r-1")
    office.finish("r-1")
    async with asyncio.TaskGroup() as tasks:
        for each in (office.audit.flush, office.audit.release, office.audit.flush):
            tasks.create_task(each())
        for _ in range(10):
            await asyncio.sleep(0)
        assert begun == ["_write"]
        gate.set()
    assert begun == ["_write", "_write", "close"]
    assert [each["request"] for each in office.lines()] == ["r-1"]
