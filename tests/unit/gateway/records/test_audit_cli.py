from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from gateway.core.vocabulary import GatewayId, Place
from gateway.records.audit import AuditAttempt, AuditLine, AuditPlace, AuditProcessed, AuditRecord, LostAuditLines
from gateway.records.audit_cli import audit
from gateway.records.audit_files import ChainedFiles, ChainSettings
from tests.support.core import AP, EU, US
from tests.support.gateways import write_policy


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(audit, [str(each) for each in arguments])


def written(
    folder: Path,
    gateway_id: str,
    place: Place,
    *records: AuditRecord,
    file_bytes_max: int = 1 << 20,
    files_max: int | None = None,
) -> Path:
    """Write the records; return the first of the gateway's files."""
    settings = ChainSettings(folder, file_bytes_max, files_max, syncs=False)
    files = ChainedFiles(settings, GatewayId(gateway_id), place, wall_time=lambda: "now", on_deleted=lambda _: None)
    files.write([msgspec.json.encode(record) for record in records])
    files.close()
    return next(path for path in sorted(folder.iterdir()) if path.name.startswith(gateway_id))


def attempt(target: str, place: Place, result: str = "completed") -> AuditAttempt:
    return AuditAttempt(target, place.region, place.jurisdiction, "digest", "process names …", result)


def line(
    at: Place,
    *attempts: AuditAttempt,
    origin: Place | None = None,
    origin_gateway: str = "",
    tenant: str | None = "default",
    outcome: str = "completed",
) -> AuditLine:
    came_from = origin or at
    answered = [each for each in attempts if each.result == "completed"]
    processed = AuditProcessed("r", answered[-1].region, answered[-1].jurisdiction) if answered else None
    return AuditLine(
        time="now",
        gateway="gw",
        region=at.region,
        jurisdiction=at.jurisdiction,
        request="r-1",
        origin=AuditPlace(came_from.region, came_from.jurisdiction),
        policy="digest",
        rule="…",
        outcome=outcome,
        origin_gateway=origin_gateway,
        tenant=tenant,
        attempts=tuple(attempts),
        processed=processed,
    )


LOCAL = line(US, attempt("replica:us-a", US))
FORWARDED = line(US, attempt("peer:ap-1", AP, "failed"), attempt("peer:eu-1", EU))
TAKEN_IN = line(EU, attempt("replica:eu-a", EU), origin=US, origin_gateway="us-1")


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    folder = tmp_path / "policies"
    folder.mkdir()
    for place in (US, EU, AP):
        write_policy(folder, place)
    return folder


def test_whole_files_are_said_to_be_whole_with_their_heads(tmp_path: Path) -> None:
    us = written(tmp_path, "us-1", US, LOCAL, FORWARDED)
    eu = written(tmp_path, "eu-1", EU, TAKEN_IN)
    result = run("verify", us, eu)
    assert result.exit_code == 0
    first, *heads = result.output.splitlines()
    assert first == "whole: 5 lines in 2 files"
    assert [head.split(":")[0] for head in heads] == ["head of eu-1", "head of us-1"]
    document = json.loads(run("verify", us, eu, "--json").output)
    assert (document["whole"], document["heads"].keys()) == (True, {"eu-1", "us-1"})


def test_a_changed_line_is_named_and_ends_with_1(tmp_path: Path) -> None:
    path = written(tmp_path, "us-1", US, LOCAL, FORWARDED)
    path.write_bytes(path.read_bytes().replace(b"ap-northeast-1", b"us-east-1-too1"))
    assert run("verify", path).exit_code == 0, "the last line: only the head shows it"
    path.write_bytes(path.read_bytes().replace(b"replica:us-a", b"replica:us-b"))
    result = run("verify", path)
    assert result.exit_code == 1
    assert f"broken: {path}:3: does not follow the line before it" in result.output
    document = json.loads(run("verify", path, "--json").output)
    assert [each["line"] for each in document["broken"]] == [3]


class TestTheOldestFiles:
    def test_one_that_was_taken_away_is_missed_also_after_a_restart(self, tmp_path: Path) -> None:
        first = written(tmp_path, "us-1", US, *[LOCAL] * 3, file_bytes_max=1)
        assert run("verify", tmp_path).exit_code == 0
        first.unlink()
        second = tmp_path / "us-1-00000002.audit"
        for _ in range(2):
            result = run("verify", tmp_path)
            assert result.exit_code == 1
            assert f"broken: {second}:1: file 1 before it, which its gateway kept, was not given" in result.output
            written(tmp_path, "us-1", US, LOCAL)
        second.unlink()
        assert "files 1 to 2 before it, which its gateway kept, were not given" in run("verify", tmp_path).output

    def test_those_that_their_gateway_deleted_are_not(self, tmp_path: Path) -> None:
        written(tmp_path, "us-1", US, *[LOCAL] * 3, file_bytes_max=1, files_max=2)
        oldest = written(tmp_path, "us-1", US, *[LOCAL] * 3, file_bytes_max=1, files_max=2)
        result = run("verify", tmp_path)
        assert result.exit_code == 0, result.output
        written(tmp_path, "us-1", US, LOCAL)
        assert run("verify", tmp_path).exit_code == 0, "it deletes none any more, and says which went before"
        oldest.unlink()
        assert run("verify", tmp_path).exit_code == 1

    def test_where_the_end_of_the_last_of_them_was_noted_the_rest_is_whole(self, tmp_path: Path) -> None:
        first = written(tmp_path, "us-1", US, *[LOCAL] * 2, file_bytes_max=1)
        noted = tmp_path / "noted"
        noted.write_text(run("heads", tmp_path).output)
        first.unlink()
        result = run("verify", tmp_path, "--noted", noted)
        assert result.exit_code == 0, result.output
        assert "note: file 1 of us-1 was not given, and ended as was noted" in result.output


def test_a_torn_last_line_is_a_note(tmp_path: Path) -> None:
    path = written(tmp_path, "us-1", US, LOCAL)
    path.write_bytes(path.read_bytes() + b'{"kind')
    result = run("verify", path)
    assert result.exit_code == 0
    assert "its last line was cut off in writing" in result.output


def test_a_file_that_is_not_there_ends_with_2(tmp_path: Path) -> None:
    assert run("verify", tmp_path / "nothing").exit_code == 2
    assert run("verify").exit_code == 2


def flows(*arguments: str | Path) -> dict[tuple[str, str], tuple[int, int, int, int]]:
    document = json.loads(run("summary", *arguments, "--json").output)
    return {
        (flow["from"], flow["to"]): (
            flow["seen_by_origin"],
            flow["processed_by_origin"],
            flow["seen_by_receiver"],
            flow["processed_by_receiver"],
        )
        for flow in document["flows"]
    }


def test_every_region_that_saw_a_request_is_counted_once_and_by_who_says_so(tmp_path: Path) -> None:
    us = written(tmp_path, "us-1", US, LOCAL, FORWARDED)
    eu = written(tmp_path, "eu-1", EU, TAKEN_IN)
    assert flows(us, eu) == {
        (US.region, US.region): (2, 1, 0, 0),
        (US.region, AP.region): (1, 0, 0, 0),
        (US.region, EU.region): (1, 1, 1, 1),
    }
    result = run("summary", us, eu)
    assert result.exit_code == 0
    assert ["us-east-1", "eu-west-1", "1", "1", "1", "1"] in [row.split() for row in result.output.splitlines()]
    assert "outcomes: 3 completed" in result.output


def contradictions(policies: Path, *files: Path) -> list[str]:
    result = run("summary", *files, "--policies", policies, "--json")
    document = json.loads(result.output)
    assert result.exit_code == bool(document["contradictions"])
    assert len(document["shown"]) == document["contradictions"]
    return [each["problem"] for each in document["shown"]]


def test_lines_that_keep_to_the_policies_contradict_nothing(tmp_path: Path, policies: Path) -> None:
    us = written(tmp_path, "us-1", US, LOCAL, FORWARDED)
    eu = written(tmp_path, "eu-1", EU, TAKEN_IN)
    assert contradictions(policies, us, eu) == []
    assert "no line contradicts the policies" in run("summary", us, eu, "--policies", policies).output
    assert "contradict" not in run("summary", us).output


def test_an_attempt_where_the_origin_forbids_it_is_found_even_if_it_failed(tmp_path: Path, policies: Path) -> None:
    write_policy(policies, US, process=(US, EU))
    us = written(tmp_path, "us-1", US, FORWARDED)
    (problem,) = contradictions(policies, us)
    assert problem.startswith(
        "us-east-1 → ap-northeast-1: process names neither region ap-northeast-1 nor jurisdiction JP"
    )
    assert "(it ran under policy digest; the file given is " in problem


def test_both_sides_show_that_a_region_took_in_what_it_does_not_accept(tmp_path: Path, policies: Path) -> None:
    write_policy(policies, EU, accept=())
    us = written(tmp_path, "us-1", US, FORWARDED)
    eu = written(tmp_path, "eu-1", EU, TAKEN_IN)
    told = "us-east-1 → eu-west-1: accept names neither region us-east-1 nor jurisdiction US"
    assert contradictions(policies, us) == [told]
    assert contradictions(policies, eu) == [told]


def test_a_refusal_is_the_policy_at_work(tmp_path: Path, policies: Path) -> None:
    write_policy(policies, EU, accept=())
    refused = line(US, attempt("peer:eu-1", EU, "refused"), outcome="expired_in_queue")
    turned_away = line(EU, origin=US, origin_gateway="us-1", outcome="refused_residency_not_accepted")
    assert contradictions(policies, written(tmp_path, "us-1", US, refused)) == []
    assert contradictions(policies, written(tmp_path, "eu-1", EU, turned_away)) == []


def test_a_request_turned_away_at_the_door_contradicts_nothing(tmp_path: Path, policies: Path) -> None:
    path = policies / f"{US.region}.policy.yaml"
    document = yaml.safe_load(path.read_text())
    document["tenants"] = {"acme": {"process": {"regions": [EU.region]}}}
    path.write_text(yaml.safe_dump(document))
    turned_away = line(US, tenant="acme", outcome="rejected_residency_ingress")
    assert contradictions(policies, written(tmp_path / "a", "us-1", US, turned_away)) == []
    let_in = line(US, attempt("replica:us-a", US), tenant="acme")
    (problem,) = contradictions(policies, written(tmp_path / "b", "us-1", US, let_in))
    assert problem.startswith("us-east-1 → us-east-1: process names neither region us-east-1")


def test_without_a_tenant_only_what_no_rule_allows_is_sure(tmp_path: Path, policies: Path) -> None:
    write_policy(policies, US, process=(US,))
    path = policies / f"{US.region}.policy.yaml"
    document = yaml.safe_load(path.read_text())
    document["tenants"] = {"acme": {"process": {"regions": [US.region, EU.region]}}}
    path.write_text(yaml.safe_dump(document))
    unnamed = line(US, attempt("peer:eu-1", EU), tenant=None)
    assert contradictions(policies, written(tmp_path / "a", "us-1", US, unnamed)) == []
    named = line(US, attempt("peer:eu-1", EU), tenant="other")
    assert len(contradictions(policies, written(tmp_path / "b", "us-1", US, named))) == 1


def test_what_cannot_be_judged_is_not_passed_over(tmp_path: Path, policies: Path) -> None:
    (policies / f"{AP.region}.policy.yaml").unlink()
    failed = line(US, attempt("peer:ap-1", AP, "failed"))
    assert contradictions(policies, written(tmp_path / "a", "us-1", US, failed)) == [
        "no policy for ap-northeast-1 is among the files"
    ]
    asked_there = line(AP, attempt("replica:ap-a", AP))
    assert contradictions(policies, written(tmp_path / "b", "ap-1", AP, asked_there)) == [
        "no policy for ap-northeast-1 is among the files"
    ]


def test_policies_that_cannot_be_used_prove_nothing(tmp_path: Path, policies: Path) -> None:
    us = written(tmp_path, "us-1", US, LOCAL)
    (policies / "second.yaml").write_text((policies / f"{US.region}.policy.yaml").read_text())
    result = run("summary", us, "--policies", policies)
    assert result.exit_code == 2
    assert "there is another policy for us-east-1" in result.output
    (policies / "second.yaml").write_text("version: 9\n")
    assert run("summary", us, "--policies", policies).exit_code == 2
    (tmp_path / "empty").mkdir()
    assert run("summary", us, "--policies", tmp_path / "empty").exit_code == 2


def test_lost_unreadable_and_broken_lines_end_with_1_and_are_told(tmp_path: Path) -> None:
    path = written(tmp_path / "a", "us-1", US, LOCAL, LostAuditLines("now", "us-1", 7))
    result = run("summary", path)
    assert result.exit_code == 1
    assert "7 lines were lost, as the files say themselves" in result.output
    path = written(tmp_path / "b", "us-1", US, LOCAL, LOCAL)
    path.write_bytes(path.read_bytes().replace(b'"completed"', b"7", 1))
    result = run("summary", path)
    assert result.exit_code == 1
    assert "1 lines cannot be read" in result.output
    assert "the files are broken in 1 places" in result.output


def test_of_many_contradictions_some_are_shown_and_all_are_counted(tmp_path: Path, policies: Path) -> None:
    write_policy(policies, US, process=(US,))
    path = written(tmp_path, "us-1", US, *[line(US, attempt("peer:eu-1", EU))] * 150)
    result = run("summary", path, "--policies", policies)
    assert result.exit_code == 1
    assert result.output.count("contradiction: ") == 100
    assert "… and 50 more contradictions" in result.output
