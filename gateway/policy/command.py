"""`nightside policy`: checks the residency policies of several regions against each other, and shows which region may
send requests to which.

It reads the files and prints the result of the check, in words or as JSON; it must never judge anything itself.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.core.kernel.regions import only
from gateway.core.kernel.residency import ResidencyPolicy, may_enter
from gateway.core.vocabulary import Place
from gateway.policy.check import Check, PolicyFinding, Severity, check_policies
from gateway.policy.file import PolicyError, in_words, policy_schema, read_policy, rules_of
from gateway.policy.flows import Region, RegionFlow, flows_between
from gateway.policy.matrix import LEGEND, matrix_page, matrix_rows
from gateway.policy.samples import copy_samples, samples
from gateway.policy.words import capitalised, region_sentences
from mesh.faults import FileError, FileFault
from mesh.regions import is_table, read_table_file
from mesh.yaml_file import YamlFile, read_yaml

EXIT_CODES = {"fine": 0, "contradiction": 1, "invalid": 2}
PLAIN_WIDTH = 100
"""Columns when the output is not a terminal."""

# The commands.


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def policy() -> None:
    """Check residency policy files and explain what they allow."""


@policy.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--narrowed-by",
    "narrowings",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Narrow the files by a controller's policy, or by a directory of them; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "--matrix",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a Markdown page of allowed flows between regions, with reasons, to this file.",
)
@click.pass_context
def check(
    context: click.Context, files: tuple[Path, ...], narrowings: tuple[Path, ...], *, as_json: bool, matrix: Path | None
) -> None:
    """Show which regions may send requests to which, and why.

    FILES are residency policies, one per region; a directory stands for the YAML files in it. A table of regions among
    them gets a note. Give all regions of the mesh at once: only then can the files be checked against each other.

    Exit codes: 0 they fit together, 1 a contradiction, 2 a file cannot be used.
    """
    checked = check_files(files, narrowings)
    if matrix is not None:
        matrix.write_text(matrix_page(checked.regions), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(machine_form(checked), indent=2))
    else:
        print_check(checked, _console())
    context.exit(EXIT_CODES[checked.result])


@policy.command()
def schema() -> None:
    """Print the JSON Schema of a policy file, for editors and pipelines."""
    click.echo(schema_text(), nl=False)


@policy.command()
@click.argument("regions", nargs=-1)
@click.option("-o", "--out", type=click.Path(file_okay=False, path_type=Path), help="Write the files into this folder.")
def sample(regions: tuple[str, ...], out: Path | None) -> None:
    """Print the policy files that are shipped for REGIONS, with their reasoning, to start from; without REGIONS, list
    the files that there are.

    Exit codes: 0 all is well, 1 a file is there already and differs, 2 the command was used wrongly.
    """
    known = samples()
    if unknown := [each for each in regions if each not in known]:
        raise click.UsageError(f"no policy comes along for {', '.join(unknown)}; there are: {', '.join(known)}")
    if not regions and out is None:
        click.echo("\n".join(known))
        return
    chosen = [known[each] for each in dict.fromkeys(regions or known)]
    if out is None:
        click.echo("---\n".join(path.read_text(encoding="utf-8") for path in chosen), nl=False)
        return
    try:
        for path in copy_samples(chosen, out):
            click.echo(path)
    except OSError as error:
        raise click.ClickException(str(error)) from error


def schema_text() -> str:
    return json.dumps(policy_schema(), indent=2) + "\n"


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


# Reading.


def check_files(files: Iterable[Path], narrowings: Iterable[Path] = ()) -> Check:
    read: dict[Path, YamlFile] = {}
    invalid: list[PolicyFinding] = []
    policies = _read_policies(files, read, invalid)
    checked = check_policies(policies, invalid, _read_policies(narrowings, read, invalid, is_narrowing=True))
    return replace(checked, findings=[_located(finding, read) for finding in checked.findings])


def _read_policies(
    files: Iterable[Path], read: dict[Path, YamlFile], invalid: list[PolicyFinding], *, is_narrowing: bool = False
) -> dict[Path, ResidencyPolicy]:
    policies: dict[Path, ResidencyPolicy] = {}
    for path in dict.fromkeys(each for file in files for each in _policy_files(file)):
        try:
            if _is_table(path):
                invalid.append(_about_table(path))
                continue
            read[path], document = read_policy(path)
            policies[path] = written = document.policy()
            if written.regions is None and not is_narrowing:
                policies[path] = replace(written, regions=only(written.place))
                invalid += [PolicyFinding(Severity.WARNING, path, fault) for fault in _want_of_table(written)]
        except PolicyError as error:
            invalid += [PolicyFinding(Severity.INVALID, path, fault) for fault in error.faults]
    return policies


def _located(finding: PolicyFinding, read: Mapping[Path, YamlFile]) -> PolicyFinding:
    file = read.get(finding.path)
    return finding if file is None else replace(finding, fault=file.located([finding.fault])[0])


def _policy_files(path: Path) -> list[Path]:
    """Policy files of a path. A directory without policy files stands for itself, and is then reported as an invalid
    file."""
    return sorted(each for pattern in ("*.yaml", "*.yml") for each in path.glob(pattern) if not _is_table(each)) or [
        path
    ]


def _is_table(path: Path) -> bool:
    """Return whether the file is a table of regions, which lies among the policies that name it."""
    try:
        return is_table(read_yaml(path).content)
    except FileError:
        return False


def _about_table(path: Path) -> PolicyFinding:
    """Finding about a table of regions that was given as a policy: what it is, or its first fault."""
    try:
        read_table_file(path)
    except FileError as error:
        return PolicyFinding(Severity.INVALID, path, error.faults[0])
    message = "is a table of regions, and no policy: it is checked with the policies that name it"
    return PolicyFinding(Severity.NOTE, path, FileFault("", message))


def _want_of_table(policy: ResidencyPolicy) -> Iterator[FileFault]:
    home = policy.place
    for key, rule in rules_of(policy):
        if rule.jurisdictions - {home.jurisdiction} or rule.regions - {home.region}:
            yield FileFault(
                "regions", f"is missing: {key} names further places, and without a table none of them is known"
            )
            return


# Output as JSON.


def machine_form(checked: Check) -> dict[str, Any]:
    return {
        "result": checked.result,
        "regions": [_region_form(region) for region in checked.regions],
        "flows": [_flow_form(flow) for flow in flows_between(checked.regions)],
        "findings": [_finding_form(finding) for finding in checked.findings],
    }


def _finding_form(finding: PolicyFinding) -> dict[str, Any]:
    fault = finding.fault
    return {
        "severity": finding.severity,
        "path": str(finding.path),
        "key": fault.key,
        "message": fault.message,
        "line": fault.line,
    }


def _region_form(region: Region) -> dict[str, Any]:
    return {
        "region": region.place.region,
        "jurisdiction": region.place.jurisdiction,
        "path": str(region.path),
        "digest": region.policy.digest,
        "closed": region.is_closed,
        "refused_on_arrival": [name for name in region.policy.tenants if not may_enter(region.policy, name).allowed],
        "logging": to_builtins(region.policy.logging),
    }


def _flow_form(flow: RegionFlow) -> dict[str, Any]:
    return {
        "from": flow.origin.region,
        "to": flow.target.region,
        "tenants": list(flow.tenants) or None,
        "allowed": flow.allowed,
        "process": to_builtins(flow.process),
        "accept": to_builtins(flow.accept),
    }


# Output for the terminal.

_COLUMN_GAP = 2
_STYLES = {"yes": "bold green", "here": "green", "421": "bold red"}
_FINDING_STYLES = {Severity.INVALID: "bold red", Severity.CONTRADICTION: "bold red", Severity.WARNING: "yellow"}


def print_check(checked: Check, console: Console) -> None:
    if checked.regions:
        _print_matrix(checked.regions, console)
    for region in checked.regions:
        _print_region(region, checked.regions, console)
    for finding in checked.findings:
        _print_finding(finding, console)
    console.print(Text(_conclusion(checked), style="bold green" if checked.is_fine else "bold red"))


def _print_matrix(regions: list[Region], console: Console) -> None:
    rows = list(matrix_rows(regions))
    names = [_column_title(region.place) for region in regions]
    numbers = [str(number) for number, _ in enumerate(regions, start=1)]
    titles = next((titles for titles in (names, numbers) if _width(titles, rows) <= console.width), None)
    console.print(Text("Allowed requests between regions", style="bold"))
    if titles is None:
        console.print(
            Text(
                "The table is too wide for this screen; the sentences below say the same, and --matrix FILE has it.",
                style="dim",
            )
        )
    else:
        console.print(_table(titles, rows))
        _print_legend({cell for _, cells in rows for cell in cells}, console)


def _width(titles: list[str], rows: list[tuple[str, list[str]]]) -> int:
    columns = zip(titles, *(cells for _, cells in rows), strict=True)
    widths = [max(len(line) for text in column for line in text.splitlines()) for column in columns]
    return sum(width + _COLUMN_GAP for width in (max(len(label) for label, _ in rows), *widths)) + _COLUMN_GAP


def _column_title(place: Place) -> str:
    return f"{place.region}\n{place.jurisdiction}".replace("-", "-\n", 1)


def _table(titles: list[str], rows: list[tuple[str, list[str]]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(Text("from / to"), overflow="fold", vertical="bottom")
    for title in titles:
        table.add_column(Text(title), overflow="fold")
    for label, cells in rows:
        table.add_row(Text(label), *(Text(cell, style=_STYLES.get(cell, "dim")) for cell in cells))
    return table


def _print_legend(used: set[str], console: Console) -> None:
    for word, meaning in LEGEND.items():
        if word in used:
            console.print(Text.assemble(("  " + word.ljust(9), _STYLES.get(word, "")), (meaning, "dim")))
    console.print(Text("  A request that was sent on is never sent on to another region.", style="dim"))


def _print_region(region: Region, regions: list[Region], console: Console) -> None:
    source = f"  {region.path}, digest {region.policy.digest}"
    console.print()
    console.print(Text.assemble((in_words(region.place), "bold"), (source, "dim")))
    for sentence in region_sentences(region, regions):
        console.print(Text(_wrapped(f"- {sentence}", console)))


def _print_finding(finding: PolicyFinding, console: Console) -> None:
    severity = capitalised(finding.severity)
    text = Text(f"{severity}  {finding.path}: {finding.fault.where}".removesuffix(": "))
    text.append(f"\n{_wrapped(finding.fault.message, console)}")
    text.stylize(_FINDING_STYLES.get(finding.severity, "bold"), 0, len(severity))
    console.print()
    console.print(text)


def _wrapped(text: str, console: Console) -> str:
    indent = "    " if text.startswith("- ") else "  "
    return textwrap.fill(text, console.width, initial_indent="  ", subsequent_indent=indent, break_on_hyphens=False)


def _conclusion(checked: Check) -> str:
    counts = ", ".join(
        f"{checked.count(severity)} {noun}{'' if checked.count(severity) == 1 else 's'}"
        for severity, noun in (
            (Severity.INVALID, "fault"),
            (Severity.CONTRADICTION, "contradiction"),
            (Severity.WARNING, "warning"),
            (Severity.NOTE, "note"),
        )
    )
    verdict = "The policies fit together" if checked.is_fine else "The policies cannot stand as they are"
    return f"\n{verdict}: {counts}."
