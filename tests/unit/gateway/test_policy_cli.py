from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from gateway.core.residency import may_enter, may_process, processing_rule, refusal_of
from gateway.core.vocabulary import ResidencyStamp, TenantName
from gateway.policy_cli import EVERYONE_ELSE, PLAIN_WIDTH, Check, check_files, machine_form, policy, print_check
from gateway.policy_file import load_policy

POLICIES = Path(__file__).parents[3] / "policies"

Rule = dict[str, list[str]]
Write = Callable[..., Path]


def by_jurisdiction(*names: str) -> Rule:
    return {"jurisdictions": list(names)}


def by_region(*names: str) -> Rule:
    return {"regions": list(names)}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a policy that keeps its requests in its jurisdiction and takes in nobody, changed as told."""

    def write_policy(region: str, jurisdiction: str, *, file: str | None = None, **changes: object) -> Path:
        content: dict[str, object] = {
            "version": 1,
            "region": region,
            "jurisdiction": jurisdiction,
            "process": by_jurisdiction(jurisdiction),
            "accept": {},
        }
        path = tmp_path / f"{file or region}.yaml"
        path.write_text(json.dumps({**content, **changes}))
        return path

    return write_policy


def run(*arguments: object) -> Result:
    return CliRunner().invoke(policy, [str(argument) for argument in arguments])


def words(result: Result) -> str:
    """The output with line breaks and indentation taken out."""
    return " ".join(result.output.split())


def found(checked: Check) -> list[tuple[str, str, str, str]]:
    return [(each.severity, each.path.stem, each.key, each.message) for each in checked.findings]


def allowed(checked: Check) -> set[tuple[str, str]]:
    return {
        (flow["from"], flow["to"])
        for flow in machine_form(checked)["flows"]
        if flow["allowed"] and flow["tenants"] is None
    }


# The examples.


def test_the_examples_fit_together_without_a_single_finding() -> None:
    result = run("check", POLICIES)
    assert result.exit_code == 0
    assert "The policies fit together: 0 faults, 0 contradictions, 0 warnings, 0 notes." in words(result)


def test_the_examples_keep_the_eu_closed_outwards_and_open_inwards() -> None:
    flows = allowed(check_files([POLICIES]))
    eu = {"eu-west-1", "eu-central-1"}
    assert {target for origin, target in flows if origin in eu} <= eu
    assert {("us-east-1", "eu-west-1"), ("eu-west-2", "eu-west-1"), ("ap-southeast-1", "eu-west-1")} <= flows


@pytest.mark.parametrize("width", range(40, 140, 7))
def test_the_table_is_shown_whole_or_not_at_all(width: int) -> None:
    output = io.StringIO()
    print_check(check_files([POLICIES]), Console(file=output, width=width))
    assert "…" not in output.getvalue()
    assert ("from / to" in output.getvalue()) != ("too wide for this screen" in output.getvalue())


def test_the_table_fits_a_common_terminal() -> None:
    output = io.StringIO()
    print_check(check_files([POLICIES]), Console(file=output, width=80))
    assert "from / to" in output.getvalue()
    assert max(map(len, output.getvalue().splitlines())) <= 80


def test_output_that_goes_to_no_terminal_has_a_width_of_its_own() -> None:
    lines = run("check", POLICIES).output.splitlines()
    assert 80 < max(map(len, lines)) <= PLAIN_WIDTH


# Words.


def test_both_ends_are_explained(write: Write) -> None:
    eu = write("dublin", "EU", accept=by_jurisdiction("EU", "US"))
    us = write("virginia", "US", process=by_jurisdiction("US", "EU"))
    text = words(run("check", eu, us))
    assert "Requests are kept away from virginia (US): `process` names neither it nor its jurisdiction." in text
    assert "Overflow is taken in from virginia (US): `accept` names its jurisdiction." in text
    assert "Requests may be sent to dublin (EU): `process` names its jurisdiction." in text
    assert "Overflow is refused from dublin (EU): `accept` names neither it nor its jurisdiction." in text


def test_an_offer_that_nobody_takes_and_a_wish_that_nobody_grants_are_explained(write: Write) -> None:
    eu = write("dublin", "EU", process=by_jurisdiction("EU", "US"))
    us = write("virginia", "US", accept=by_region("lyon"))
    fr = write("lyon", "FR")
    text = words(run("check", eu, us, fr))
    assert (
        "Requests are not sent to virginia (US), though `process` names its jurisdiction: `accept` there does not"
        in text
    )
    assert "Overflow would be taken in from lyon (FR), for `accept` names it, but none is sent." in text


def test_a_denied_region_is_said_to_be_denied(write: Write) -> None:
    dublin = write("dublin", "EU", process={**by_jurisdiction("EU"), "denied_regions": ["lyon"]})
    lyon = write("lyon", "EU", accept={**by_jurisdiction("EU"), "denied_regions": ["dublin"]})
    text = words(run("check", dublin, lyon))
    assert "Requests are kept away from lyon (EU): `process` denies it." in text
    assert "Overflow is refused from dublin (EU): `accept` denies it." in text


def test_tenants_are_explained_and_those_treated_alike_share_a_sentence(write: Write) -> None:
    rules = {
        "clinic": {"process": by_region("lyon")},
        "court": {"process": by_region("virginia")},
        "bank": {"process": by_region("dublin")},
        "shop": {"process": by_region("dublin", "lyon")},
    }
    dublin = write("dublin", "EU", tenants=rules)
    lyon = write("lyon", "EU", accept=by_jurisdiction("EU"))
    text = words(run("check", dublin, lyon))
    assert (
        "Tenants clinic and court are refused here (HTTP 421) before any content is read: `tenants` leaves this" in text
    )
    assert "Tenant bank is processed here and nowhere else." in text
    assert "Tenant shop may be processed here and in lyon (EU), nowhere else." in text


def test_what_may_be_logged_is_said(write: Write) -> None:
    open_logs = {"tenant": True, "client_address": True, "session_key": True}
    shut_logs = {"tenant": False}
    text = words(run("check", write("dublin", "EU", logging=open_logs), write("lyon", "EU", logging=shut_logs)))
    assert "Logs may show the tenant, the client address and the session key, never the content of a request." in text
    assert "Logs never show the tenant, the client address, the session key or the content of a request." in text


def test_one_file_alone_is_explained_too(write: Write) -> None:
    result = run("check", write("dublin", "EU"))
    assert result.exit_code == 0
    assert "Requests stay here, for no other region was given." in words(result)


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


# The cells of the table.


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


# Findings between files.


def test_two_files_for_one_region_are_a_contradiction(write: Write) -> None:
    first = write("dublin", "EU", file="first")
    second = write("dublin", "IE", file="second")
    checked = check_files([first, second])
    message = f"{first} is a policy for this region too, and states it as dublin (EU)"
    assert ("contradiction", "second", "region", message) in found(checked)
    assert checked.exit_code == 1
    assert len(checked.regions) == 1


def test_one_file_given_twice_is_one_file(write: Write) -> None:
    path = write("dublin", "EU")
    assert found(check_files([path, path, path.parent])) == []


@pytest.mark.parametrize(
    ("accept", "key", "message"),
    [
        (
            by_jurisdiction("eu"),
            "accept.jurisdictions",
            "jurisdiction eu is written EU in {dublin}",
        ),
        (by_region("Dublin"), "accept.regions", "region Dublin is written dublin in {dublin}"),
        (by_region("EU"), "accept.regions", "EU stands here as a region, but other files know it as a jurisdiction"),
        (
            by_jurisdiction("dublin"),
            "accept.jurisdictions",
            "dublin stands here as a jurisdiction, but other files know it as a region",
        ),
    ],
)
def test_a_name_that_means_another_place_is_a_contradiction(write: Write, accept: Rule, key: str, message: str) -> None:
    dublin, virginia = write("dublin", "EU"), write("virginia", "US", accept=accept)
    assert found(check_files([dublin, virginia])) == [("contradiction", "virginia", key, message.format(dublin=dublin))]


def test_one_tenant_in_two_spellings_is_a_contradiction(write: Write) -> None:
    tenants = [{name: {"process": by_jurisdiction("EU")}} for name in ("bank", "Bank")]
    files = [write(region, "EU", tenants=each) for region, each in zip(("dublin", "lyon"), tenants, strict=True)]
    assert ("contradiction", "lyon", "tenants.Bank", f"tenant Bank is written bank in {files[0]}") in found(
        check_files(files)
    )


def test_naming_a_region_that_takes_in_nothing_is_a_contradiction(write: Write) -> None:
    dublin = write("dublin", "EU", process={**by_jurisdiction("EU"), **by_region("virginia")})
    virginia = write("virginia", "US")
    assert found(check_files([dublin, virginia])) == [
        (
            "contradiction",
            "dublin",
            "process.regions",
            f"names virginia, which takes in nothing from here: in {virginia}, "
            "accept names neither region dublin nor jurisdiction EU",
        )
    ]


def test_naming_its_jurisdiction_alone_is_a_note(write: Write) -> None:
    dublin, virginia = write("dublin", "EU", process=by_jurisdiction("EU", "US")), write("virginia", "US")
    checked = check_files([dublin, virginia])
    assert [each[:3] for each in found(checked)] == [("note", "dublin", "process.jurisdictions")]
    assert checked.exit_code == 0


def test_what_follows_from_a_file_at_odds_with_itself_is_not_reported_as_well(write: Write) -> None:
    dublin = write("dublin", "EU", process={**by_jurisdiction("EU"), **by_region("virginia")})
    virginia = write("virginia", "US", process={}, accept=by_jurisdiction("EU"))
    assert [each[:3] for each in found(check_files([dublin, virginia]))] == [("contradiction", "virginia", "process")]


def test_a_tenants_rule_that_names_a_refusing_region_is_a_contradiction_unless_the_tenant_never_gets_in(
    write: Write,
) -> None:
    virginia = write("virginia", "US", tenants={"bank": {"process": by_jurisdiction("US")}})
    for home, contradictions in ((["dublin"], [("dublin", "tenants.bank.process.regions")]), ([], [])):
        dublin = write("dublin", "EU", tenants={"bank": {"process": by_region(*home, "virginia")}})
        assert [
            (path, key)
            for severity, path, key, _ in found(check_files([dublin, virginia]))
            if severity == "contradiction"
        ] == contradictions


def test_a_region_that_no_file_is_for_is_a_warning_and_a_jurisdiction_a_note(write: Write) -> None:
    process = {**by_jurisdiction("EU", "UK"), "denied_regions": ["eu-suoth-1"]}
    checked = check_files([write("dublin", "EU", process=process, accept=by_region("lyon"))])
    assert found(checked) == [
        ("warning", "dublin", "process.denied_regions", "none of the given files is for region eu-suoth-1"),
        ("warning", "dublin", "accept.regions", "none of the given files is for region lyon"),
        ("note", "dublin", "process.jurisdictions", "none of the given files is for a region in jurisdiction UK"),
    ]
    assert checked.exit_code == 0


def test_a_denial_of_a_region_from_elsewhere_is_a_note(write: Write) -> None:
    tenants = {"bank": {"process": by_jurisdiction("EU")}}
    dublin = write("dublin", "EU", process={**by_jurisdiction("EU"), "denied_regions": ["london"]}, tenants=tenants)
    london = write("london", "UK")
    lyon = write("lyon", "EU", process={**by_jurisdiction("EU"), "denied_regions": ["dublin"]}, tenants=tenants)
    message = "denies london (UK), which nothing beside it would allow"
    denials = [each for each in found(check_files([dublin, london, lyon])) if "denies" in each[3]]
    assert denials == [("note", "dublin", "process.denied_regions", message)]


def test_a_tenant_forgotten_in_one_file_is_a_warning(write: Write) -> None:
    tenants = {name: {"process": by_jurisdiction("EU")} for name in ("bank", "clinic")}
    checked = check_files([write("dublin", "EU", tenants=tenants), write("virginia", "US")])
    assert found(checked) == [
        (
            "warning",
            "virginia",
            "tenants",
            "tenants bank and clinic have rules in other files and none here, where the region's `process` applies",
        )
    ]


def test_a_tenants_rule_wider_than_its_regions_is_a_note(write: Write) -> None:
    tenants = {"bank": {"process": by_jurisdiction("EU", "US")}}
    dublin = write("dublin", "EU", tenants=tenants)
    virginia = write("virginia", "US", accept=by_jurisdiction("EU"), tenants=tenants)
    lyon = write("lyon", "EU", process=by_jurisdiction("EU", "US"), tenants=tenants)
    wider = "tenant bank may go to {}, where the region's own `process` does not"
    assert [each for each in found(check_files([dublin, virginia, lyon])) if each[2] == "tenants.bank.process"] == [
        ("note", "dublin", "tenants.bank.process", wider.format("virginia (US)")),
        ("note", "virginia", "tenants.bank.process", wider.format("dublin (EU) and lyon (EU)")),
    ]


def test_a_tenants_rule_that_offers_a_jurisdiction_in_vain_is_a_note(write: Write) -> None:
    tenants = {"bank": {"process": by_jurisdiction("EU", "US")}}
    dublin, virginia = write("dublin", "EU", tenants=tenants), write("virginia", "US", tenants=tenants)
    assert (
        "note",
        "dublin",
        "tenants.bank.process.jurisdictions",
        "lets requests go to virginia (US), which takes in nothing from here: "
        "accept names neither region dublin nor jurisdiction EU",
    ) in found(check_files([dublin, virginia]))


def test_a_long_list_of_tenants_is_cut(write: Write) -> None:
    tenants = {f"t{number}": {"process": by_jurisdiction("EU")} for number in range(7)}
    text = words(run("check", write("dublin", "EU", tenants=tenants), write("lyon", "EU")))
    assert "tenants t0, t1, t2, t3 and 3 more have rules in other files" in text
    assert "t0 +6" in text


# Exit codes and the form for programs.


def test_an_invalid_file_counts_more_than_a_contradiction(write: Write, tmp_path: Path) -> None:
    contradictory = write("dublin", "EU", process={})
    invalid = tmp_path / "invalid.yaml"
    invalid.write_text("version: 1\nfoo: 2\n")
    result = run("check", contradictory, invalid)
    assert result.exit_code == 2
    assert "Invalid " in result.output
    assert "invalid.yaml: foo is not a known key" in words(result)
    assert "dublin.yaml: process allows nowhere" in words(result)
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


# The check and the gateways give the same answers.

REGIONS = {"a1": "A", "a2": "A", "b1": "B"}


@st.composite
def rules(draw: st.DrawFn, home: str | None = None) -> Rule:
    """A rule without contradictions; with a home, one that a region's `process` may be."""
    fates = {region: draw(st.sampled_from(["named", "denied", "neither"])) for region in REGIONS if region != home}
    return {
        "jurisdictions": draw(st.lists(st.sampled_from(["A", "B"]), min_size=1, unique=True)),
        "regions": [region for region, fate in fates.items() if fate == "named"] + ([home] if home else []),
        "denied_regions": [region for region, fate in fates.items() if fate == "denied"],
    }


def sections(home: str) -> st.SearchStrategy[dict[str, Any]]:
    accept = rules().map(lambda rule: {**rule, "denied_regions": [x for x in rule["denied_regions"] if x != home]})
    tenants = st.dictionaries(st.just("bank"), st.fixed_dictionaries({"process": rules()}))
    return st.fixed_dictionaries({"process": rules(home), "accept": accept | st.just({}), "tenants": tenants})


@settings(max_examples=60)
@given(st.fixed_dictionaries({region: sections(region) for region in REGIONS}))
def test_the_check_says_what_the_gateways_do(content: dict[str, dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for region, section in content.items():
            document = {"version": 1, "region": region, "jurisdiction": REGIONS[region], **section}
            Path(directory, f"{region}.yaml").write_text(json.dumps(document))
        checked = check_files([Path(directory)])
    policies = {region.place.region: region.policy for region in checked.regions}
    assert policies.keys() == REGIONS.keys()
    for flow in machine_form(checked)["flows"]:
        origin, target = policies[flow["from"]], policies[flow["to"]]
        tenant = TenantName(flow["tenants"][0]) if flow["tenants"] else EVERYONE_ELSE
        stamp = ResidencyStamp(origin.place, tenant, processing_rule(origin, tenant), origin.digest)
        at_origin = may_enter(origin, tenant).allowed and may_process(origin, tenant, target.place).allowed
        assert flow["allowed"] == (at_origin and refusal_of(target, stamp) is None)
