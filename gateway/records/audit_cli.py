"""Command `nightside audit`: verifies the audit log's chain, sums it up, and checks it against policies. It
changes no file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import msgspec
from msgspec import Struct, field
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.core.kernel.residency import ResidencyPolicy, may_accept, may_process
from gateway.core.vocabulary import Jurisdiction, LegResult, Outcome, Place, RegionName, TargetKind, TenantName
from gateway.policy.file import PolicyError, load_policy
from gateway.records.audit import REFUSED_PREFIX, AuditLine, AuditPlace, AuditRecord, ForbiddenPlace, LostAuditLines
from gateway.records.audit_files import SUFFIX, FileHeader
from gateway.records.audit_heads import SignedHead, Witness, read_noted, read_public_key
from gateway.records.audit_verify import (
    BrokenLine,
    VerifiedFile,
    files_not_given,
    gaps_between,
    in_order,
    missing_before,
    verify_file,
)
from mesh.faults import ConfigError

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PLAIN_WIDTH = 110
"""Columns when the output is no terminal."""
SHOWN_MAX = 100
"""Maximum of contradictions printed one by one; all are counted."""

DECODER = msgspec.json.Decoder(FileHeader | SignedHead | AuditRecord)


def _files_in(_context: click.Context, _option: click.Parameter, given: tuple[Path, ...]) -> tuple[Path, ...]:
    """Replace each folder by the audit files in it. Raises BadParameter for a folder without any."""
    found: list[Path] = []
    for path in given:
        inside = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            raise click.BadParameter(f"{path} holds no file that ends in {SUFFIX}")
        found += inside
    return tuple(dict.fromkeys(found))


files_argument = click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), callback=_files_in
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def audit() -> None:
    """Check the audit record and hold it against policies."""


# Integrity


@audit.command()
@files_argument
@click.option(
    "--public-key",
    "key_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Of audit.signing_key: every file has to be signed with it. May be repeated, where keys were exchanged.",
)
@click.option(
    "--noted",
    "noted_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Heads noted before: what `audit heads` printed, or a gateway's log as JSON. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a form for programs instead of words.")
def verify(
    files: tuple[Path, ...], *, key_files: tuple[Path, ...], noted_files: tuple[Path, ...], as_json: bool
) -> None:
    """Say whether FILES are as they were written: no line changed, taken out or put in. A folder stands for all in it.

    Give all files of a gateway at once, in any order: each continues the one before. By themselves they cannot show
    that they were forged whole or cut at the end: for that give --public-key, --noted, or best of all both.

    Exit codes: 0 whole, 1 something does not fit, 2 a file cannot be read.
    """
    checked = check_files(files, _witness(key_files, noted_files))
    click.echo(msgspec.json.encode(_as_document(checked)) if as_json else "\n".join(_in_words(checked)))
    if checked.broken:
        raise SystemExit(1)


@audit.command()
@files_argument
def heads(files: tuple[Path, ...]) -> None:
    """Print where FILES stand, a JSON object a line, to be noted elsewhere for `audit verify --noted`.

    Exit codes: 0 whole, 1 something does not fit: then nothing is printed, 2 a file cannot be read.
    """
    checked = check_files(files)
    if checked.broken:
        raise click.ClickException("the files are broken: see `nightside audit verify`")
    for file in in_order(checked.files):
        click.echo(msgspec.json.encode(file.noted))


def _witness(key_files: Iterable[Path], noted_files: Iterable[Path]) -> Witness:
    """Read the witness's files. Raises UsageError for a file that cannot be used."""
    try:
        noted = [head for path in noted_files for head in read_noted(path)]
        return Witness([read_public_key(path) for path in key_files], noted)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


class CheckedFiles(Struct, frozen=True):
    files: list[VerifiedFile]
    broken: list[BrokenLine]
    notes: list[str]
    """Observations that are no proof of a fault and need a person's judgement."""

    @property
    def lines(self) -> int:
        return sum(file.lines for file in self.files)

    @property
    def heads(self) -> dict[str, str]:
        """Hash of the last line, by gateway."""
        return {file.header.gateway: file.head for file in in_order(self.files) if file.header is not None}


def check_files(paths: Iterable[Path], witness: Witness | None = None) -> CheckedFiles:
    """Verify files by themselves and against each other. Raises UsageError where a file cannot be read."""
    witness = witness or Witness()
    files = [_verified(path, witness) for path in dict.fromkeys(paths)]
    missing, notes = files_not_given(files, witness)
    before, notes_before = missing_before(files, witness)
    broken = [*(each for file in files for each in file.broken), *gaps_between(files), *before, *missing]
    of_files = (f"{file.path}: {note}" for file in files for note in file.notes)
    return CheckedFiles(files, broken, [*of_files, *notes_before, *notes])


def _verified(path: Path, witness: Witness) -> VerifiedFile:
    try:
        return verify_file(path, witness)
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _in_words(checked: CheckedFiles) -> Iterator[str]:
    for broken in checked.broken:
        yield f"broken: {broken}"
    for file in checked.files:
        if file.was_cut_off:
            yield f"note: {file.path}: its last line was cut off in writing, as by a power cut"
    for note in checked.notes:
        yield f"note: {note}"
    verdict = "broken" if checked.broken else "whole"
    yield f"{verdict}: {checked.lines} lines in {len(checked.files)} files"
    for gateway, head in checked.heads.items():
        yield f"head of {gateway}: {head}"


def _as_document(checked: CheckedFiles) -> dict[str, object]:
    return {
        "whole": not checked.broken,
        "files": len(checked.files),
        "lines": checked.lines,
        "broken": [{"file": str(each.path), "line": each.line, "problem": each.problem} for each in checked.broken],
        "cut_off": [str(file.path) for file in checked.files if file.was_cut_off],
        "notes": checked.notes,
        "heads": checked.heads,
    }


# Summary


@audit.command()
@files_argument
@click.option(
    "--policies", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
    help="Compare every line with the policies of this folder.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a form for programs instead of a table.")
def summary(files: tuple[Path, ...], *, policies: Path | None, as_json: bool) -> None:
    """Count whose requests were seen where, and name every line that contradicts the policies in DIR.

    A region counts as having seen a request if it was sent there at all, answered or not. Both sides of a forward
    record it: with the files of both, their counts agree.

    Exit codes: 0 nothing contradicts, 1 a line contradicts a policy, cannot be judged or read, or the files are
    broken, 2 a file cannot be read.
    """
    checked = check_files(files)
    made = Summary({} if policies is None else read_policies(policies), judges=policies is not None)
    for path in dict.fromkeys(files):
        made.read(path)
    if as_json:
        click.echo(msgspec.json.encode(_summary_document(made, checked)))
    else:
        console = Console(highlight=False)
        _print_summary(made, checked, console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH))
    if made.contradictions or made.unreadable or made.lost or checked.broken:
        raise SystemExit(1)


class AuditCounts(Struct):
    """Requests of one region in another, as each side wrote it down."""

    seen_by_origin: int = 0
    processed_by_origin: int = 0
    seen_by_receiver: int = 0
    processed_by_receiver: int = 0


class Contradiction(Struct, frozen=True):
    path: str
    line: int
    request: str
    problem: str


class Summary(Struct):
    """Sums over the lines."""

    policies: dict[str, ResidencyPolicy]
    judges: bool
    """True if the lines are checked against the policies."""
    counts: dict[tuple[str, str], AuditCounts] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    contradictions: int = 0
    shown: list[Contradiction] = field(default_factory=list)
    unreadable: int = 0
    lost: int = 0

    def read(self, path: Path) -> None:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    self._take(str(path), number, line)

    def _take(self, path: str, number: int, line: bytes) -> None:
        try:
            record = DECODER.decode(line)
        except msgspec.DecodeError:
            self.unreadable += 1
            return
        if isinstance(record, LostAuditLines):
            self.lost += record.lines
        elif isinstance(record, ForbiddenPlace):
            where = f"{record.processed.region}/{record.processed.jurisdiction}"
            problem = f"{record.peer} said that it ran in {where}, which the request's rule forbade"
            self._contradicts(Contradiction(path, number, record.request, problem))
        elif isinstance(record, AuditLine):
            self._count(record)
            for problem in self._problems_of(record) if self.judges else ():
                self._contradicts(Contradiction(path, number, record.request, problem))

    def _count(self, record: AuditLine) -> None:
        self.outcomes[record.outcome] = self.outcomes.get(record.outcome, 0) + 1
        is_origin = not record.origin_gateway
        origin = record.origin.region
        for region in {place.region for place in _places(record)}:
            counts = self.counts.setdefault((origin, region), AuditCounts())
            counts.seen_by_origin += is_origin
            counts.seen_by_receiver += not is_origin
        if record.processed is not None:
            counts = self.counts.setdefault((origin, record.processed.region), AuditCounts())
            counts.processed_by_origin += is_origin
            counts.processed_by_receiver += not is_origin

    def _contradicts(self, contradiction: Contradiction) -> None:
        self.contradictions += 1
        if len(self.shown) < SHOWN_MAX:
            self.shown.append(contradiction)

    def _problems_of(self, record: AuditLine) -> Iterator[str]:
        """Contradictions between a line and the given policies, and policies that are missing to judge it."""
        if record.outcome == Outcome.REJECTED_RESIDENCY_INGRESS:
            return
        policy = self.policies.get(record.origin.region)
        if policy is None:
            yield f"no policy for {record.origin.region} is among the files"
            return
        for place in dict.fromkeys(_places(record)):
            if not _may_process(policy, record.tenant, _place(place)):
                why = may_process(policy, TenantName(record.tenant or ""), _place(place)).why
                yield f"{record.origin.region} → {place.region}: {why}{_digests(record, policy)}"
        for region in dict.fromkeys(_receivers(record)):
            yield from self._taken_in(region, _place(record.origin))

    def _taken_in(self, region: str, origin: Place) -> Iterator[str]:
        policy = self.policies.get(region)
        if policy is None:
            yield f"no policy for {region} is among the files"
        elif not (accepted := may_accept(policy, origin)).allowed:
            yield f"{origin.region} → {region}: {accepted.why}"


def read_policies(folder: Path) -> dict[str, ResidencyPolicy]:
    """Policies by region. Raises UsageError if any cannot be used, since half of the rules prove nothing."""
    found: dict[str, ResidencyPolicy] = {}
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        try:
            policy = load_policy(path)
        except PolicyError as error:
            raise click.UsageError(str(error)) from error
        if policy.place.region in found:
            raise click.UsageError(f"{path}: there is another policy for {policy.place.region}")
        found[policy.place.region] = policy
    if not found:
        raise click.UsageError(f"{folder}: holds no policy files")
    return found


def _may_process(policy: ResidencyPolicy, tenant: str | None, target: Place) -> bool:
    """True if the policy allows the target. Where the line names no tenant, it is false only if no rule of the policy
    allows it."""
    if tenant is not None:
        return may_process(policy, TenantName(tenant), target).allowed
    rules = [policy.process, *(each.process for each in policy.tenants.values())]
    return any(rule.allows(target) for rule in rules)


def _places(record: AuditLine) -> Iterator[AuditPlace]:
    """Places that saw the request, as far as this gateway knows; its own comes first."""
    yield AuditPlace(record.region, record.jurisdiction)
    for attempt in record.attempts:
        yield AuditPlace(attempt.region, attempt.jurisdiction)
    if record.processed is not None:
        yield AuditPlace(record.processed.region, record.processed.jurisdiction)


def _receivers(record: AuditLine) -> Iterator[str]:
    """Regions whose gateways accepted the request from another gateway; a gateway that refused it kept to its
    policy."""
    if record.origin_gateway and not record.outcome.startswith(REFUSED_PREFIX):
        yield record.region
    for attempt in record.attempts:
        if attempt.target.startswith(f"{TargetKind.PEER}:") and attempt.result != LegResult.REFUSED:
            yield attempt.region


def _place(place: AuditPlace) -> Place:
    return Place(RegionName(place.region), Jurisdiction(place.jurisdiction))


def _digests(record: AuditLine, policy: ResidencyPolicy) -> str:
    then = record.attempts[-1].policy if record.attempts else record.policy
    return "" if then == policy.digest else f" (it ran under policy {then}; the file given is {policy.digest})"


def _summary_document(made: Summary, checked: CheckedFiles) -> dict[str, object]:
    return {
        "whole": not checked.broken,
        "flows": [
            {"from": origin, "to": region, **msgspec.to_builtins(counts)}
            for (origin, region), counts in sorted(made.counts.items())
        ],
        "outcomes": dict(sorted(made.outcomes.items())),
        "contradictions": made.contradictions,
        "shown": made.shown,
        "unreadable": made.unreadable,
        "lost": made.lost,
    }


def _print_summary(made: Summary, checked: CheckedFiles, console: Console) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in ("From", "Seen in", "seen, says the origin", "answered", "seen, says the receiver", "answered"):
        table.add_column(header, justify="left" if header in ("From", "Seen in") else "right", overflow="fold")
    for (origin, region), counts in sorted(made.counts.items()):
        numbers = (
            counts.seen_by_origin,
            counts.processed_by_origin,
            counts.seen_by_receiver,
            counts.processed_by_receiver,
        )
        table.add_row(Text(origin), Text(region), *map(str, numbers))
    console.print(table)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(made.outcomes.items()))
    console.print(Text(f"outcomes: {outcomes or 'none'}"))
    for line in _remarks(made, checked):
        console.print(Text(line))


def _remarks(made: Summary, checked: CheckedFiles) -> Iterator[str]:
    for each in made.shown:
        yield f"contradiction: {each.path}:{each.line}: request {each.request}: {each.problem}"
    if made.contradictions > len(made.shown):
        yield f"… and {made.contradictions - len(made.shown)} more contradictions"
    if made.judges and not made.contradictions:
        yield "no line contradicts the policies"
    if made.lost:
        yield f"{made.lost} lines were lost, as the files say themselves"
    if made.unreadable:
        yield f"{made.unreadable} lines cannot be read"
    if checked.broken:
        yield f"the files are broken in {len(checked.broken)} places: see `nightside audit verify`"
