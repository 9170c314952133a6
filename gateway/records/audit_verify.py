"""Verification of tamper-evident files: reads them and reports where the chain does not hold. It changes none of
them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from gateway.records.audit_files import FORMAT, LINE_BYTES_MAX, FileHeader, hash_of
from gateway.records.audit_heads import FileWitness, Head, Witness

_HASH = re.compile(rb'^\{.*"prev":"(?P<hash>[0-9a-f]{64}|)"\}$', re.DOTALL)


class BrokenLine(Struct, frozen=True):
    """A place where the chain does not hold, or where a file is not what it should be."""

    path: Path
    line: int
    """Line number from 1; 0 for the file as a whole."""
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}" if self.line else f"{self.path}: {self.problem}"


class VerifiedFile(Struct, frozen=True):
    path: Path
    header: FileHeader | None
    """Unset when the file has no readable header."""
    lines: int
    """Number of whole lines, including the header."""
    head: str
    """Hash of the last whole line. Noted elsewhere, it later shows whether the end was cut off."""
    broken: tuple[BrokenLine, ...]
    was_cut_off: bool
    """True if the last line is not whole, as after a power cut."""
    notes: tuple[str, ...] = ()
    """Observations that are no proof of a fault and need a person's judgement."""

    @property
    def noted(self) -> Head | None:
        """Head of the file, to be noted elsewhere."""
        return None if self.header is None else Head(self.header.gateway, self.header.number, self.lines, self.head)


def verify_file(path: Path, witness: Witness | None = None) -> VerifiedFile:
    """Follow one file's chain from its first line to its last, and check it against the witness's keys and noted heads.
    Raises OSError."""
    followed = _Followed(path, witness or Witness())
    with path.open("rb") as file:
        for line in _lines(file):
            followed.take(line)
    return followed.result()


class _Followed:
    """State of a chain up to the last line read."""

    def __init__(self, path: Path, witness: Witness) -> None:
        self._path = path
        self._witness = witness
        self._file: FileWitness | None = None
        """Witness for this file, set once the header has named gateway and number."""
        self._header: FileHeader | None = None
        self._broken: list[BrokenLine] = []
        self._count = 0
        self._head = ""
        self._was_cut_off = False

    def take(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            self._was_cut_off = True
            return
        line = line[:-1]
        self._count += 1
        problem = self._read_header(line) if self._count == 1 else _problem_of(line, self._head)
        head = hash_of(line)
        if self._file is not None:
            problem = self._file.take(line, self._head, head) or problem
        if problem is not None:
            self._broken.append(BrokenLine(self._path, self._count, problem))
        self._head = head

    def result(self) -> VerifiedFile:
        if self._count == 0:
            self._broken.append(BrokenLine(self._path, 0, "holds no whole line"))
        notes: tuple[str, ...] = ()
        if self._file is not None:
            self._broken += [BrokenLine(self._path, each.line, each.problem) for each in self._file.findings()]
            notes = tuple(self._file.notes())
        broken = tuple(self._broken)
        return VerifiedFile(self._path, self._header, self._count, self._head, broken, self._was_cut_off, notes)

    def _read_header(self, line: bytes) -> str | None:
        self._header = read_header(line)
        if self._header is None:
            return "is no header of an audit file of this format"
        self._file = self._witness.of(self._header.gateway, self._header.number)
        return None


def gaps_between(files: Iterable[VerifiedFile]) -> list[BrokenLine]:
    """Faults where the files of a gateway, in order of number, do not follow each other."""
    last_of: dict[str, VerifiedFile] = {}
    found: list[BrokenLine] = []
    for file in in_order(files):
        assert file.header is not None
        before = last_of.get(file.header.gateway)
        if before is not None and (problem := _gap_between(before, file)) is not None:
            found.append(BrokenLine(file.path, 1, problem))
        last_of[file.header.gateway] = file
    return found


def missing_before(files: Iterable[VerifiedFile], witness: Witness) -> tuple[list[BrokenLine], list[str]]:
    """Files of each gateway between the oldest that it kept and the oldest given: a fault, or a note if their last head
    was noted, which proves how they ended."""
    oldest: dict[str, VerifiedFile] = {}
    newest: dict[str, FileHeader] = {}
    for file in in_order(files):
        assert file.header is not None
        oldest.setdefault(file.header.gateway, file)
        newest[file.header.gateway] = file.header
    broken: list[BrokenLine] = []
    notes: list[str] = []
    for gateway, file in oldest.items():
        assert file.header is not None
        wanted, number = newest[gateway].oldest, file.header.number
        if number <= wanted:
            continue
        is_one = wanted == number - 1
        gone, were = (f"file {wanted}", "was") if is_one else (f"files {wanted} to {number - 1}", "were")
        if witness.knows(gateway, number - 1, file.header.prev):
            notes.append(f"{gone} of {gateway} {were} not given, and ended as was noted")
        else:
            broken.append(BrokenLine(file.path, 1, f"{gone} before it, which its gateway kept, {were} not given"))
    return broken, notes


def files_not_given(files: Iterable[VerifiedFile], witness: Witness) -> tuple[list[BrokenLine], list[str]]:
    """Files with noted heads that were not given: a fault for a file newer than the oldest given one of its gateway,
    since gateways delete only their oldest files; else a note."""
    last_of = {file.header.gateway: file for file in in_order(files) if file.header is not None}
    given = [(file.header.gateway, file.header.number) for file in in_order(files) if file.header is not None]
    broken: list[BrokenLine] = []
    notes: list[str] = []
    for gateway, number, is_wanted in witness.missing(given):
        if is_wanted:
            problem = f"the gateway's file {number}, of which a head was noted, is not among those given"
            broken.append(BrokenLine(last_of[gateway].path, 0, problem))
        else:
            notes.append(f"file {number} of {gateway}, of which a head was noted, was not given")
    return broken, notes


def in_order(files: Iterable[VerifiedFile]) -> list[VerifiedFile]:
    """Files with a header, by gateway and number."""
    named = [(each.header.gateway, each.header.number, each) for each in files if each.header is not None]
    return [each for *_, each in sorted(named, key=lambda entry: entry[:2])]


def read_header(line: bytes) -> FileHeader | None:
    try:
        header = msgspec.json.decode(line, type=FileHeader)
    except msgspec.DecodeError:
        return None
    return header if header.format == FORMAT else None


def _problem_of(line: bytes, head: str) -> str | None:
    match = _HASH.match(line)
    if match is None:
        return "is no line of an audit file"
    if match["hash"].decode() != head:
        return "does not follow the line before it: one of the two was changed, or lines were taken out or put in"
    return None


def _gap_between(before: VerifiedFile, file: VerifiedFile) -> str | None:
    assert before.header is not None
    assert file.header is not None
    if file.header.number == before.header.number:
        return f"has the number of {before.path}"
    if file.header.number != before.header.number + 1:
        return f"is number {file.header.number}, and number {before.header.number + 1} was not given"
    if file.header.prev != before.head:
        return f"does not follow the last line of {before.path}: its end was changed or cut off"
    return None


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LINE_BYTES_MAX):
        yield line
