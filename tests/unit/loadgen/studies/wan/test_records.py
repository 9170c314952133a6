"""Records that are missing, unreadable or changed are violations, and never pass for a sound history."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName
from gateway.records.audit import AuditAttempt, AuditLine, AuditPlace, AuditProcessed, AuditRecord, ForbiddenPlace
from gateway.records.audit_cli import SHOWN_MAX
from gateway.records.audit_files import ChainedFiles, ChainSettings
from loadgen.studies.failover.clients import SdkCall
from loadgen.studies.wan.records import read_audit, read_calls
from tests.support.core import policy

US, EU = RegionName("us-east-1"), RegionName("eu-west-1")
CALLS = [SdkCall(US, 0, 5, 3, request_id="r1"), SdkCall(US, 6)]
AT_US = AuditPlace(US, "US")


def audit_line(request: str, place: AuditPlace = AT_US) -> AuditLine:
    attempt = AuditAttempt("replica:a", place.region, place.jurisdiction, "digest", "rule", "completed")
    return AuditLine(
        "2026-01-01T00:00:00Z", "gw-us", US, "US", request, AT_US, "digest", "rule", "completed", attempts=(attempt,)
    )


def written(folder: Path, *records: AuditRecord) -> Path:
    """Audit file of a gateway with these records."""
    files = ChainedFiles(
        ChainSettings(folder, 1 << 20, None, syncs=False), GatewayId("gw-us"), Place(US, Jurisdiction("US")),
        wall_time=lambda: "2026-01-01T00:00:00Z", on_deleted=lambda path: pytest.fail(f"{path} was deleted"),
    )  # fmt: skip
    files.write([msgspec.json.encode(each) for each in records])
    files.close()
    (path,) = folder.glob("*.audit")
    return path


@pytest.fixture
def policies() -> dict[str, ResidencyPolicy]:
    return {US: policy(Place(US, Jurisdiction("US")))}


def read(folder: Path, policies: dict[str, ResidencyPolicy]) -> tuple[list[AuditRecord], list[str]]:
    records, found = read_audit(folder, policies)
    return records, [each.rule for each in found]


def test_calls_of_all_regions_are_read(tmp_path: Path) -> None:
    logs = {region: tmp_path / f"{region}.jsonl" for region in (US, EU)}
    for log in logs.values():
        log.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in CALLS))
    assert read_calls(logs) == (2 * CALLS, [])


def test_calls_that_are_missing_or_cut_off_are_a_violation_each(tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(msgspec.json.encode(CALLS[0])[:-5])
    calls, found = read_calls({US: cut, EU: tmp_path / "none.jsonl"})
    assert calls == []
    assert [(each.rule, each.about) for each in found] == [("every record is there", US), ("every record is there", EU)]


def test_the_records_of_whole_files_are_read(tmp_path: Path, policies: dict[str, ResidencyPolicy]) -> None:
    lines = [audit_line("r1"), audit_line("r2")]
    written(tmp_path, *lines)
    assert read(tmp_path, policies) == (lines, [])


def test_a_line_that_was_taken_out_breaks_the_chain(tmp_path: Path, policies: dict[str, ResidencyPolicy]) -> None:
    path = written(tmp_path, *(audit_line(f"r{number}") for number in range(3)))
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*kept[:2], *kept[3:]]))
    assert read(tmp_path, policies)[1] == ["every record is there"]


def test_a_line_that_was_cut_off_is_missed(tmp_path: Path, policies: dict[str, ResidencyPolicy]) -> None:
    path = written(tmp_path, audit_line("r1"), audit_line("r2"))
    path.write_bytes(path.read_bytes()[:-20])
    records, rules = read(tmp_path, policies)
    assert records == [audit_line("r1")]
    assert {*rules} == {"every record is there"}


def test_all_lines_that_contradict_the_policies_count(tmp_path: Path, policies: dict[str, ResidencyPolicy]) -> None:
    many = SHOWN_MAX + 2
    written(tmp_path, *(audit_line(f"r{number}", AuditPlace("sa-east-1", "BR")) for number in range(many)))
    records, found = read_audit(tmp_path, policies)
    assert (len(records), len(found)) == (many, SHOWN_MAX + 1)
    assert str(found[-1]) == "nothing outside policy: further lines: 2 more contradict the policies"


def test_a_forbidden_place_is_judged_by_its_own_record(tmp_path: Path, policies: dict[str, ResidencyPolicy]) -> None:
    ran_at = AuditProcessed("x", "sa-east-1", "BR")
    written(tmp_path, ForbiddenPlace("2026-01-01T00:00:00Z", "gw-us", "r1", "gw-eu", ran_at), audit_line("r1"))
    records, rules = read(tmp_path, policies)
    assert (len(records), rules) == (2, [])
