from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from gateway.policy.check import Check, Severity
from gateway.policy.command import PLAIN_WIDTH, check_files, machine_form, policy, print_check
from gateway.policy.file import load_policy
from tests.support.policies import by_jurisdiction, by_region, policy_content

POLICIES = Path(__file__).parents[4] / "policies"
SOME = [
    POLICIES / f"{region}.yaml" for region in ("ap-south-1", "ap-southeast-1", "eu-central-1", "eu-west-1", "us-east-1")
]

TABLE = {"dublin": "EU", "lyon": "EU", "virginia": "US", "a": "A", "b": "B", "c": "C"}
TABLE |= {"eu-west-1": "EU", "us-east-1": "US"}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a policy into the file of its region."""

    def write_policy(region: str, jurisdiction: str, **changes: object) -> Path:
        path = tmp_path / f"{region}.yaml"
        content = policy_content(region, jurisdiction, **changes)
        table = content.setdefault("regions", TABLE | {region: jurisdiction})
        path.write_text(json.dumps(content if table else {**content, "regions": None}))
        return path

    return write_policy


def run(*arguments: object) -> Result:
    return CliRunner().invoke(policy, [str(argument) for argument in arguments])


def words(result: Result) -> str:
    """The output with line breaks and indentation taken out."""
    return " ".join(result.output.split())


def allowed(checked: Check) -> set[tuple[str, str]]:
    return {
        (flow["from"], flow["to"])
        for flow in machine_form(checked)["flows"]
        if flow["allowed"] and flow["tenants"] is None
    }


# Examples


def test_the_examples_fit_together_without_a_single_finding() -> None:
    result = run("check", POLICIES)
    assert result.exit_code == 0
    assert "The policies fit together: 0 faults, 0 contradictions, 0 warnings, 0 notes." in words(result)


def test_the_examples_keep_the_eu_closed_outwards_and_open_inwards() -> None:
    flows = allowed(check_files([POLICIES]))
    eu = {"eu-west-1", "eu-central-1", "eu-west-3", "eu-north-1", "eu-south-1"}
    assert {target for origin, target in flows if origin in eu} <= eu
    assert {("us-east-1", "eu-west-1"), ("eu-west-2", "eu-west-1"), ("ap-southeast-1", "eu-west-1")} <= flows


@pytest.mark.parametrize("width", range(40, 140, 7))
def test_the_table_is_shown_whole_or_not_at_all(width: int) -> None:
    output = io.StringIO()
    print_check(check_files(SOME), Console(file=output, width=width))
    assert "…" not in output.getvalue()
    assert ("from / to" in output.getvalue()) != ("too wide for this screen" in output.getvalue())


def test_the_table_fits_a_common_terminal() -> None:
    output = io.StringIO()
    print_check(check_files(SOME), Console(file=output, width=80))
    assert "from / to" in output.getvalue()
    assert max(map(len, output.getvalue().splitlines())) <= 80


def test_output_that_goes_to_no_terminal_has_a_width_of_its_own() -> None:
    lines = run("check", POLICIES).output.splitlines()
    assert 80 < max(map(len, lines)) <= PLAIN_WIDTH


def test_the_page_of_the_examples_is_as_it_would_be_written_now(tmp_path: Path) -> None:
    written = tmp_path / "matrix.md"
    assert run("check", POLICIES, "--matrix", written).exit_code == 0
    assert written.read_text() == (POLICIES / "matrix.md").read_text(), (
        "run: nightside policy check policies --matrix policies/matrix.md"
    )


# Text output


def test_markup_in_a_tenants_name_is_printed_as_it_stands(write: Write) -> None:
    tenants = {"[bold]bank[/bold]": {"process": by_region("dublin")}}
    assert "Tenant [bold]bank[/bold] is processed here" in words(run("check", write("dublin", "EU", tenants=tenants)))


def test_a_region_whose_file_contradicts_itself_is_shown_closed(write: Write) -> None:
    bad = write("dublin", "EU", process=by_jurisdiction("US"), accept=by_jurisdiction("US"))
    us = write("virginia", "US", process=by_jurisdiction("US", "EU"))
    result = run("check", bad, us)
    assert result.exit_code == 1
    assert "runs closed: its requests stay in the region" in words(result)
    assert "closed until the policy there is mended" in words(result)
    assert allowed(check_files([bad, us])) == set()


# Cells of the table


def cells(*paths: Path) -> dict[str, list[str]]:
    """The table's rows by their label."""
    output = io.StringIO()
    print_check(check_files(paths), Console(file=output, width=120))
    lines = output.getvalue().splitlines()
    first = next(number for number, line in enumerate(lines) if "──" in line) + 1
    rows = [line.rsplit(maxsplit=len(paths)) for line in takewhile(str.strip, lines[first:])]
    return {label.strip(): row for label, *row in rows}


def test_every_kind_of_cell(write: Write) -> None:
    tenants = {"bank": {"process": by_region("b")}}
    paths = [
        write("a", "A", process=by_jurisdiction("A", "B", "C"), tenants=tenants),
        write("b", "B", accept=by_jurisdiction("A", "C")),
        write("c", "C", accept=by_jurisdiction("B")),
    ]
    assert cells(*paths) == {
        "1 a (A)": ["here", "yes", "refused"],
        "bank": ["421", "-", "-"],
        "2 b (B)": ["neither", "here", "keeps"],
        "3 c (C)": ["neither", "keeps", "here"],
    }


def test_a_long_list_of_tenants_is_cut(write: Write) -> None:
    tenants = {f"t{number}": {"process": by_jurisdiction("EU")} for number in range(7)}
    text = words(run("check", write("dublin", "EU", tenants=tenants), write("lyon", "EU")))
    assert "tenants t0, t1, t2, t3 and 3 more have rules in other files" in text
    assert "t0 +6" in text


# The table of regions


def test_a_table_beside_its_policies_is_no_policy(write: Write, tmp_path: Path) -> None:
    (tmp_path / "regions.yaml").write_text('{"version": 1, "regions": {"dublin": "EU", "lyon": "EU"}}')
    write("dublin", "EU", regions="regions.yaml")
    write("lyon", "EU", accept=by_jurisdiction("EU"), regions="regions.yaml")
    assert check_files([tmp_path]).is_fine
    assert allowed(check_files([tmp_path])) == {("dublin", "lyon")}


def test_a_table_that_is_given_as_a_file_gets_a_note(write: Write, tmp_path: Path) -> None:
    table = tmp_path / "regions.yaml"
    table.write_text('{"version": 1, "regions": {"dublin": "EU"}}')
    result = run("check", write("dublin", "EU", regions="regions.yaml"), table)
    assert result.exit_code == 0
    assert f"Note {table} is a table of regions, and no policy: it is checked with" in words(result)
    assert "0 faults, 0 contradictions, 0 warnings, 1 note." in words(result)
    table.write_text('{"version": 1, "regions": {"dublin": 7}}')
    result = run("check", table)
    assert result.exit_code == 2
    assert f"Invalid {table}: line 1: regions.dublin" in words(result)


def test_the_samples_fit_together_by_the_names_that_a_shell_gives(tmp_path: Path) -> None:
    assert run("sample", "us-east-1", "eu-west-1", "ap-northeast-1", "-o", tmp_path).exit_code == 0
    assert run("check", *sorted(tmp_path.glob("*.yaml"))).exit_code == 0


def test_a_file_without_a_table_knows_of_no_other_region(write: Write) -> None:
    lyon, dublin = write("lyon", "EU", accept=by_jurisdiction("EU")), write("dublin", "EU", regions={})
    assert allowed(check_files([dublin, lyon])) == set()
    virginia = write("virginia", "US", process=by_jurisdiction("US", "EU"), regions={})
    assert "regions is missing: process names further places" in words(run("check", virginia)).replace(": is", " is")


def test_tables_that_are_at_odds_are_found(write: Write) -> None:
    one = write("dublin", "EU", regions=TABLE | {"virginia": "EU"})
    two = write("lyon", "EU", process=by_region("lyon", "oslo"))
    result = run("check", one, two)
    assert result.exit_code == 1
    assert "has virginia (US), and" in words(result)
    assert "names oslo, which is not in the table of regions, and so gets nothing" in words(result)


# Exit codes and machine-readable output


def test_one_file_given_twice_is_one_file(write: Write, tmp_path: Path) -> None:
    path, missing = write("dublin", "EU"), tmp_path / "none.yaml"
    checked = check_files([path, path, path.parent, missing, missing])
    assert [(each.path, each.severity) for each in checked.findings] == [(missing, Severity.INVALID)]


def test_an_invalid_file_counts_more_than_a_contradiction(write: Write, tmp_path: Path) -> None:
    contradictory = write("dublin", "EU", process={})
    invalid = tmp_path / "invalid.yaml"
    invalid.write_text("version: 1\nfoo: 2\n")
    result = run("check", contradictory, invalid)
    assert result.exit_code == 2
    assert "Invalid " in result.output
    assert "invalid.yaml: line 2: foo is not a known key" in words(result)
    assert "dublin.yaml: line 1: process allows nowhere" in words(result)
    assert "The policies cannot stand as they are: 5 faults, 1 contradiction, 0 warnings, 0 notes." in words(result)


@pytest.mark.parametrize("arguments", [["check"], ["check", "--colour", "x"], ["chekc"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_a_missing_file_or_a_directory_without_policies_exits_with_2(tmp_path: Path) -> None:
    assert "cannot be read" in words(run("check", tmp_path / "none.yaml"))
    assert "is not a file" in words(run("check", tmp_path))
    assert run("check", tmp_path / "none.yaml").exit_code == run("check", tmp_path).exit_code == 2


def test_the_form_for_programs(write: Write) -> None:
    tenants = {"clinic": {"process": by_region("lyon")}}
    dublin = write("dublin", "EU", tenants=tenants)
    lyon = write("lyon", "EU", accept=by_region("dublin"), tenants=tenants)
    result = run("check", "--json", dublin, lyon)
    form: dict[str, Any] = json.loads(result.output)
    assert result.exit_code == 0
    assert form["result"] == "fine"
    assert form["regions"][0] == {
        "region": "dublin",
        "jurisdiction": "EU",
        "path": str(dublin),
        "digest": load_policy(dublin).digest,
        "closed": False,
        "refused_on_arrival": ["clinic"],
        "logging": {"tenant": True, "client_address": False, "session_key": False},
    }
    assert form["flows"][0] == {
        "from": "dublin",
        "to": "lyon",
        "tenants": None,
        "allowed": True,
        "process": {"allowed": True, "why": "process names jurisdiction EU"},
        "accept": {"allowed": True, "why": "accept names region dublin"},
    }
    assert form["flows"][1]["tenants"] == ["clinic"]
    assert not form["flows"][1]["allowed"]
    assert form["findings"] == [
        {
            "severity": "note",
            "path": str(lyon),
            "key": "process.jurisdictions",
            "message": "lets requests go to dublin (EU), which takes in nothing from here: "
            "accept names neither region lyon nor jurisdiction EU",
            "line": 1,
        }
    ]


@pytest.mark.parametrize(("process", "result"), [({}, "contradiction"), ({"foo": 1}, "invalid")])
def test_the_form_for_programs_names_the_result(write: Write, process: object, result: str) -> None:
    path = write("dublin", "EU", process=process)
    assert json.loads(run("check", "--json", path).output)["result"] == result


def test_the_schema_is_printed() -> None:
    result = run("schema")
    assert result.exit_code == 0
    assert result.output == (POLICIES / "residency.schema.json").read_text()


# Policies as a controller narrows them


@pytest.fixture
def mesh(tmp_path: Path) -> Path:
    """Two regions that send each other everything."""
    folder = tmp_path / "own"
    folder.mkdir()
    for region, jurisdiction in (("us-east-1", "US"), ("eu-west-1", "EU")):
        content = policy_content(
            region, jurisdiction, process=by_jurisdiction("US", "EU"), accept=by_jurisdiction("US", "EU"), regions=TABLE
        )
        (folder / f"{region}.yaml").write_text(json.dumps(content))
    return folder


def test_a_controller_s_policy_takes_away_from_what_the_region_s_own_says(mesh: Path, write: Write) -> None:
    assert allowed(check_files([mesh])) == {("us-east-1", "eu-west-1"), ("eu-west-1", "us-east-1")}
    at_home = write("eu-west-1", "EU", process=by_region("eu-west-1"), accept=by_jurisdiction("US"))
    result = run("check", mesh, "--narrowed-by", at_home)
    assert result.exit_code == 0
    assert allowed(check_files([mesh], [at_home])) == {("us-east-1", "eu-west-1")}
    assert "Requests are kept away from us-east-1 (US)" in words(result)
    narrower = write("eu-west-1", "EU", process=by_region("eu-west-1", "us-east-1"), accept=by_jurisdiction("US"))
    assert "Requests may be sent to us-east-1 (US): `process` names it and its jurisdiction." in words(
        run("check", mesh, "--narrowed-by", narrower)
    )


def test_a_controller_s_policy_for_nobody_here_or_for_another_place_is_found(mesh: Path, write: Write) -> None:
    nobody = run("check", mesh, "--narrowed-by", write("ap-1", "IN"))
    assert nobody.exit_code == 0
    assert "none of the given files is for this region, so nothing is narrowed by it" in words(nobody)
    elsewhere = run("check", mesh, "--narrowed-by", write("eu-west-1", "UK"))
    assert elsewhere.exit_code == 1
    assert "it closes the region" in words(elsewhere)
    assert "A gateway here runs closed, as the controller narrows it" in words(elsewhere)
    broken = mesh.parent / "broken.yaml"
    broken.write_text("version: 1\n")
    assert run("check", mesh, "--narrowed-by", broken).exit_code == 2


# Sample policies


def test_those_that_come_along_are_listed_and_printed() -> None:
    regions = run("sample").output.split()
    assert regions == sorted(path.stem for path in POLICIES.glob("*.yaml") if path.name != "regions.yaml")
    assert run("sample", "eu-west-1").output == (POLICIES / "eu-west-1.yaml").read_text()


def test_they_are_written_and_what_was_changed_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    assert run("sample", "us-east-1", "eu-west-1", "-o", folder).exit_code == 0
    assert run("check", folder).exit_code == 0
    (folder / "eu-west-1.yaml").write_text("ours\n")
    again = run("sample", "us-west-2", "eu-west-1", "-o", folder)
    assert again.exit_code == 1
    assert f"{folder}/eu-west-1.yaml: there already, and different" in again.output
    assert (folder / "eu-west-1.yaml").read_text() == "ours\n"
    assert not (folder / "us-west-2.yaml").exists()


def test_a_region_without_one_is_told_with_those_that_there_are() -> None:
    result = run("sample", "mars-1")
    assert result.exit_code == 2
    assert "no policy comes along for mars-1; there are: ap-northeast-1" in words(result)
