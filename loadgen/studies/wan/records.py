"""Reads the records that a run has left: the clients' calls, and the audit logs of all gateways.

It must never pass over a record that is missing or unreadable: each is a violation.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path

import msgspec

from gateway.core.kernel.residency import ResidencyPolicy
from gateway.core.vocabulary import RegionName
from gateway.records.audit import AuditRecord, ForbiddenPlace
from gateway.records.audit_cli import DECODER, Summary, check_files
from gateway.records.audit_files import SUFFIX, FileHeader
from gateway.records.audit_heads import SignedHead
from loadgen.studies.failover.clients import SdkCall
from loadgen.studies.wan.histories import RECORDED, HistoryViolation


def read_calls(logs: Mapping[RegionName, Path]) -> tuple[list[SdkCall], list[HistoryViolation]]:
    """Calls of all regions' clients."""
    calls: list[SdkCall] = []
    found: list[HistoryViolation] = []
    for region, log in logs.items():
        try:
            calls += [msgspec.json.decode(line, type=SdkCall) for line in log.read_bytes().splitlines()]
        except (OSError, msgspec.DecodeError) as error:
            found.append(HistoryViolation(RECORDED, region, f"the calls of its clients cannot be read: {error}"))
    return calls, found


def read_audit(
    folder: Path, policies: Mapping[str, ResidencyPolicy]
) -> tuple[list[AuditRecord], list[HistoryViolation]]:
    """Records of all gateways, whose files are anywhere in the folder. Violations are faults of the files' chains, and
    lines that contradict the policies."""
    summary = Summary(dict(policies), judges=True)
    records: list[AuditRecord] = []
    forbidden: set[tuple[str, int]] = set()
    """Lines that a rule of its own judges."""
    files = sorted(folder.rglob(f"*{SUFFIX}"))
    found = [*_faults_of(files)]
    for path in files:
        summary.read(path)
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                record = DECODER.decode(line)
            except msgspec.DecodeError as error:
                found.append(HistoryViolation(RECORDED, f"{path.name}, line {number}", f"it cannot be read: {error}"))
                continue
            if not isinstance(record, FileHeader | SignedHead):
                records.append(record)
            if isinstance(record, ForbiddenPlace):
                forbidden.add((str(path), number))
    return records, [*found, *_contradictions(summary, forbidden)]


def _faults_of(files: list[Path]) -> Iterator[HistoryViolation]:
    checked = check_files(files)
    for broken in checked.broken:
        yield HistoryViolation(RECORDED, f"{broken.path.name}, line {broken.line}", broken.problem)
    for file in checked.files:
        if file.was_cut_off:
            yield HistoryViolation(RECORDED, file.path.name, "its last line was cut off")


def _contradictions(summary: Summary, but: Container[tuple[str, int]]) -> Iterator[HistoryViolation]:
    """Lines that contradict the policies, `but` some files' lines."""
    for each in summary.shown:
        if (each.path, each.line) not in but:
            yield HistoryViolation("nothing outside policy", each.request, each.problem)
    if (more := summary.contradictions - len(summary.shown)) > 0:
        yield HistoryViolation("nothing outside policy", "further lines", f"{more} more contradict the policies")
