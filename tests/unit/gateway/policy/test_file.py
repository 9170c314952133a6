from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.kernel.residency import LoggingRule, TenantPolicy, may_accept, may_enter, may_process
from gateway.core.vocabulary import Jurisdiction, Place, PlaceRule, RegionName, TenantName
from gateway.policy.file import (
    DIGEST_HEX_DIGITS,
    NAMES_MAX,
    POLICY_FILE_BYTES_MAX,
    NameKind,
    PolicyContradiction,
    PolicyDocument,
    PolicyError,
    folded,
    load_narrowing,
    load_policy,
    load_policy_or_closed,
    policy_schema,
    read_policy,
    table_file,
)

EXAMPLES = sorted((Path(__file__).parents[4] / "policies").glob("*-*.yaml"))
PUBLISHED_SCHEMA = Path(__file__).parents[4] / "policies/residency.schema.json"

POLICY = """\
version: 1
region: eu-west-1
jurisdiction: EU
process:
  jurisdictions: [EU]
  denied_regions: [eu-south-1]
accept:
  jurisdictions: [US]
  regions: [eu-west-2]
tenants:
  clinic:
    process: {regions: [eu-central-1]}
logging: {tenant: false, session_key: true}
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_policy(text: str) -> Path:
        path = tmp_path / "policy.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_policy


def place(region: str, jurisdiction: str) -> Place:
    return Place(RegionName(region), Jurisdiction(jurisdiction))


def minimal(**changes: object) -> str:
    content: dict[str, object] = {
        "version": 1,
        "region": "eu-west-1",
        "jurisdiction": "EU",
        "process": {"jurisdictions": ["EU"]},
        "accept": {},
    }
    return json.dumps({key: value for key, value in {**content, **changes}.items() if value is not ...})


def error_of(path: Path) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    return caught.value


def faults_of(path: Path) -> list[tuple[str, str]]:
    return [(fault.key, fault.message) for fault in error_of(path).faults]


# Meaning of a file


def test_a_file_becomes_a_policy(write: Write) -> None:
    policy = read_policy(write(POLICY))[1].policy()
    assert policy.place == place("eu-west-1", "EU")
    assert policy.process == PlaceRule(
        jurisdictions=frozenset({Jurisdiction("EU")}), denied_regions=frozenset({RegionName("eu-south-1")})
    )
    assert policy.accept == PlaceRule(frozenset({Jurisdiction("US")}), frozenset({RegionName("eu-west-2")}))
    assert policy.logging == LoggingRule(tenant=False, client_address=False, session_key=True)
    assert policy.closed_reason == ""


def test_what_the_region_denies_is_denied_to_every_tenant(write: Write) -> None:
    wide = minimal(
        process={"jurisdictions": ["EU"], "denied_regions": ["eu-south-1"]},
        tenants={"bank": {"process": {"jurisdictions": ["EU"], "denied_regions": ["eu-north-1"]}}},
    )
    policy = read_policy(write(wide))[1].policy()
    denied = frozenset({RegionName("eu-south-1"), RegionName("eu-north-1")})
    assert policy.tenants == {
        TenantName("bank"): TenantPolicy(PlaceRule(frozenset({Jurisdiction("EU")}), denied_regions=denied))
    }


# The table of regions

TABLE = """\
version: 1
regions:
  eu-west-1: { jurisdiction: EU, replicas: [10.2.0.0/16] }
  eu-central-1: EU
  us-east-1: US
"""
OPEN = minimal(process={"jurisdictions": ["EU", "US"]}, accept={"jurisdictions": ["EU", "US"], "regions": ["oslo"]})


def test_only_places_of_the_table_get_anything_whatever_a_rule_names(write: Write, tmp_path: Path) -> None:
    (tmp_path / "regions.yaml").write_text(TABLE)
    policy = load_policy(write(OPEN[:-1] + ', "regions": "regions.yaml"}'))
    known = [place("eu-west-1", "EU"), place("eu-central-1", "EU"), place("us-east-1", "US")]
    unknown = {
        place("us-west-2", "EU"): "region us-west-2 is not in the operators' table of regions",
        place("oslo", "NO"): "region oslo is not in the operators' table of regions",
        place("us-east-1", "EU"): "the operators' table has region us-east-1 in US, not in EU",
    }
    tenant = TenantName("anyone")
    assert all(may_process(policy, tenant, each).allowed and may_accept(policy, each).allowed for each in known)
    for each, why in unknown.items():
        for verdict in (may_process(policy, tenant, each), may_accept(policy, each)):
            assert (verdict.allowed, verdict.why) == (False, why)


def test_without_a_table_a_region_knows_of_itself_alone(write: Write) -> None:
    policy = load_policy(write(OPEN))
    assert may_process(policy, TenantName("anyone"), place("eu-west-1", "EU")).allowed
    for each in (place("eu-central-1", "EU"), place("us-east-1", "US")):
        assert not may_process(policy, TenantName("anyone"), each).allowed
        assert not may_accept(policy, each).allowed


def test_a_table_in_the_file_and_one_that_it_names_are_one_table(write: Write, tmp_path: Path) -> None:
    (tmp_path / "regions.yaml").write_text(TABLE)
    named = write(OPEN[:-1] + ', "regions": "regions.yaml"}')
    assert table_file(named) == tmp_path / "regions.yaml"
    by_name = load_policy(named)
    inside = load_policy(write(OPEN[:-1] + f', "regions": {json.dumps(yaml.safe_load(TABLE)["regions"])}}}'))
    assert by_name == inside
    assert by_name.digest != load_policy(write(OPEN)).digest, "what the table says is part of the policy"


@pytest.mark.parametrize(
    ("regions", "fault"),
    [
        ('"none.yaml"', "regions: none.yaml: cannot be read"),
        ('{"eu-west-1": {"jurisdiction": "EU", "replicas": ["10.0.0.1/8"]}}', "has host bits set"),
        ('{"eu-west-1": {"jurisdiction": "EU", "replicas": ["*.eu.example"]}}', "is neither a network"),
        ('{"eu-west-1": {"jurisdicton": "EU"}}', "regions.eu-west-1.jurisdiction: is missing"),
        ('{"us-east-1": "US"}', "region eu-west-1 is not in the operators' table of regions"),
        ('{"eu-west-1": "US"}', "has region eu-west-1 in US, not in EU"),
        ('{"eu-west-1": "EU", "EU-west-1": "EU"}', "region EU-west-1 is written eu-west-1 elsewhere"),
        (json.dumps({"eu-west-1": "EU"} | {f"r{n}": f"J{n}" for n in range(64)}), "more than 64 jurisdictions"),
    ],
)
def test_a_table_that_cannot_be_meant_closes_the_region(write: Write, regions: str, fault: str) -> None:
    assert fault in str(error_of(write(OPEN[:-1] + f', "regions": {regions}}}')))


def test_a_narrowing_without_a_table_leaves_places_to_the_regions_own(write: Write) -> None:
    assert may_process(load_narrowing(write(OPEN)), TenantName("x"), place("us-east-1", "US")).allowed
    with_table = load_narrowing(write(OPEN[:-1] + ', "regions": {"eu-west-1": "EU"}}'))
    assert not may_process(with_table, TenantName("x"), place("us-east-1", "US")).allowed


def test_a_tenant_may_leave_out_the_region_itself(write: Write) -> None:
    policy = load_policy(write(POLICY))
    assert not may_enter(policy, TenantName("clinic")).allowed
    assert may_enter(policy, TenantName("anyone")).allowed


def test_norway_is_a_country(write: Write) -> None:
    text = "version: 1\nregion: oslo\njurisdiction: NO\nprocess: {jurisdictions: [NO, EU]}\naccept: {}\n"
    assert load_policy(write(text)).place == place("oslo", "NO")


def test_a_byte_order_mark_is_no_content(write: Write) -> None:
    assert load_policy(write(f"\ufeff{POLICY}")) == load_policy(write(POLICY))


# The digest


def test_comments_layout_order_and_written_defaults_do_not_change_the_digest(write: Write) -> None:
    plain = load_policy(write(minimal(process={"jurisdictions": ["EU", "UK"]}))).digest
    rewritten = """\
# Reviewed in spring.
accept: {}
logging: {client_address: false}
process:
    jurisdictions:
      - UK    # once they agree
      - EU
    regions: []
jurisdiction: "EU"
region: eu-west-1
tenants: {}
version: 1
"""
    assert load_policy(write(rewritten)).digest == plain
    assert len(plain) == DIGEST_HEX_DIGITS
    assert int(plain, 16) > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"region": "eu-west-9"},
        {"jurisdiction": "UK", "process": {"regions": ["eu-west-1"], "jurisdictions": ["EU"]}},
        {"process": {"regions": ["eu-west-1"]}},
        {"process": {"jurisdictions": ["EU"], "denied_regions": ["EU"]}},
        {"accept": {"jurisdictions": ["EU"]}},
        {"tenants": {"bank": {"process": {"jurisdictions": ["EU"]}}}},
        {"logging": {"tenant": False}},
    ],
)
def test_every_change_of_content_changes_the_digest(changes: dict[str, object]) -> None:
    before, after = (PolicyDocument.model_validate_json(text) for text in (minimal(), minimal(**changes)))
    assert before.digest != after.digest


# Faults of a file


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (minimal(acept={}, accept=...), "accept", "is missing"),
        (minimal(proces={}), "proces", "is not a known key; is `process` meant?"),
        (minimal(process={"jurisdictions": ["EU"], "colour": "red"}), "process.colour", "is not a known key"),
        (minimal(version=2), "version", "is not 1, the one version of the format that this program knows"),
        (minimal(version=True), "version", "is not 1, the one version of the format that this program knows"),
        (minimal(region=7), "region", "should be text; put it in quotes"),
        (
            minimal(jurisdiction="European Union"),
            "jurisdiction",
            "'European Union' should be 1 to 64 letters, digits, dots, dashes or underscores",
        ),
        (minimal(accept=None), "accept", "should hold keys and values, or {} for none"),
        (minimal(tenants=[]), "tenants", "should hold keys and values, or {} for none"),
        (minimal(process={"jurisdictions": "EU"}), "process.jurisdictions", "should be a list, such as [EU, UK]"),
        (
            minimal(process={"jurisdictions": ["EU", 4]}),
            "process.jurisdictions[1]",
            "should be text; put it in quotes",
        ),
        (minimal(process={"jurisdictions": ["EU", "EU"]}), "process.jurisdictions", "EU stands here twice"),
        (
            minimal(accept={"regions": [f"r{number}" for number in range(NAMES_MAX + 1)]}),
            "accept.regions",
            f"holds more than {NAMES_MAX}",
        ),
        (
            minimal(tenants={" bank": {"process": {"jurisdictions": ["EU"]}}}),
            "tenants. bank",
            "a tenant's name is 1 to 128 printable ASCII characters, with no space at either end",
        ),
        (minimal(logging={"tenant": "yes"}), "logging.tenant", "should be true or false"),
        ("", "", "is empty"),
        ("# nothing yet\n", "", "is empty"),
        ("[1]", "", "should hold keys and values, or {} for none"),
        (f"{POLICY}accept: {{}}\n", "accept", "is written twice"),
        (
            f"{POLICY}  session_key: true",
            "",
            "while parsing a block mapping: expected <block end>, but found '<block mapping start>'",
        ),
        (
            POLICY.replace("process: {regions: [eu-central-1]}", "process: {regions: [a], regions: [b]}"),
            "tenants.clinic.process.regions",
            "is written twice",
        ),
        (POLICY.replace("clinic:", "123:"), "tenants", "a key here is not text; put it in quotes"),
        (
            POLICY.replace("accept:", "accept: &all"),
            "",
            "anchors and aliases (& and *) are not allowed: each rule is written out where it holds",
        ),
        (
            POLICY.replace("version: 1", "version: !!int 1"),
            "",
            "tags are not allowed: text that begins with ! is put in quotes",
        ),
        (f"{POLICY}---\n{POLICY}", "", "expected a single document in the stream: but found another document"),
        ("[" * 50_000, "", "nested too deeply"),
        ("{a: " * 50_000, "", "nested too deeply"),
    ],
)
def test_a_fault_names_its_key_and_what_is_expected(write: Write, text: str, key: str, message: str) -> None:
    path = write(text)
    assert (key, message) in faults_of(path)
    assert not isinstance(error_of(path), PolicyContradiction)
    assert error_of(path).path == path


def test_an_error_reads_as_file_key_and_message(write: Write) -> None:
    path = write(minimal(foo=1, bar=2))
    assert str(error_of(path)) == f"{path}: line 1: foo: is not a known key (and 1 more)"


def test_a_file_beyond_the_size_limit_is_refused(write: Write) -> None:
    fitting = POLICY + "#" * (POLICY_FILE_BYTES_MAX - len(POLICY))
    assert load_policy(write(fitting)) == load_policy(write(POLICY))
    assert faults_of(write(fitting + "#")) == [("", "is larger than 256 KiB")]


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"version: 1\n\xff")
    assert faults_of(path) == [("", "is not UTF-8 text (byte 11)")]
    path.write_bytes(b"version: \x01\n")
    assert faults_of(path)[0][1].startswith("is not YAML: unacceptable character")


def test_a_missing_file_and_what_is_no_file_are_refused_without_waiting(tmp_path: Path) -> None:
    assert faults_of(tmp_path / "none.yaml") == [("", "cannot be read: No such file or directory")]
    assert faults_of(tmp_path) == [("", "is not a file")]
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    assert faults_of(pipe) == [("", "is not a file")]


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#,?% \n\t01~é\x00", max_size=60))
def test_any_text_is_a_policy_or_a_policy_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    assert error_of(path).faults[0].message


# Contradictions within a file


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"process": {}}, "process", "allows nowhere: it names neither a jurisdiction nor a region"),
        (
            {"process": {"denied_regions": ["us-east-1"]}},
            "process",
            "allows nowhere: it names neither a jurisdiction nor a region",
        ),
        (
            {"tenants": {"bank": {"process": {}}}},
            "tenants.bank.process",
            "allows nowhere: it names neither a jurisdiction nor a region",
        ),
        (
            {"process": {"jurisdictions": ["US"]}},
            "process",
            "leaves out the region itself, eu-west-1 (EU); only a tenant's rule may do that",
        ),
        (
            {"process": {"jurisdictions": ["EU"], "denied_regions": ["eu-west-1"]}},
            "process",
            "leaves out the region itself, eu-west-1 (EU); only a tenant's rule may do that",
        ),
        (
            {"accept": {"jurisdictions": ["EU"], "denied_regions": ["eu-west-1"]}},
            "accept.denied_regions",
            "denies the region itself, eu-west-1 (EU)",
        ),
        (
            {"process": {"jurisdictions": ["EU"], "regions": ["a"], "denied_regions": ["a"]}},
            "process.regions",
            "a is both allowed and denied",
        ),
        (
            {"accept": {"regions": ["a", "b"], "denied_regions": ["b"]}},
            "accept.regions",
            "b is both allowed and denied",
        ),
        (
            {
                "process": {"jurisdictions": ["EU"], "denied_regions": ["a"]},
                "tenants": {"bank": {"process": {"regions": ["a"]}}},
            },
            "tenants.bank.process.regions",
            "a is both allowed and denied",
        ),
        (
            {"accept": {"jurisdictions": ["E.U"]}},
            "accept.jurisdictions",
            "jurisdiction E.U is written EU elsewhere in this file",
        ),
        (
            {"accept": {"jurisdictions": ["GB", "UK"]}},
            "accept.jurisdictions",
            "jurisdiction UK is written GB elsewhere in this file",
        ),
        (
            {"process": {"jurisdictions": ["EU"], "denied_regions": ["EU-West-1"]}},
            "process.denied_regions",
            "region EU-West-1 is written eu-west-1 elsewhere in this file",
        ),
        (
            {"tenants": {name: {"process": {"jurisdictions": ["EU"]}} for name in ("bank", "Bank")}},
            "tenants.Bank",
            "tenant Bank is written bank elsewhere in this file",
        ),
    ],
)
def test_a_contradiction_names_its_key(write: Write, changes: dict[str, object], key: str, message: str) -> None:
    path = write(minimal(**changes))
    assert faults_of(path) == [(key, message)]
    assert isinstance(error_of(path), PolicyContradiction)


def test_all_contradictions_of_a_file_are_found_at_once(write: Write) -> None:
    assert [key for key, _ in faults_of(write(minimal(process={"jurisdictions": ["eu"]})))] == [
        "process",
        "process.jurisdictions",
    ]


def test_a_region_inherited_by_tenants_is_not_reported_again(write: Write) -> None:
    text = minimal(
        process={"jurisdictions": ["EU"], "denied_regions": ["EU-west-1"]},
        tenants={"bank": {"process": {"jurisdictions": ["EU"]}}},
    )
    assert [key for key, _ in faults_of(write(text))] == ["process.denied_regions"]


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (NameKind.REGION, "us-west-1", "us-west1"),
        (NameKind.TENANT, "a-b", "a_b"),
        (NameKind.JURISDICTION, "EU", "EEA"),
        (NameKind.JURISDICTION, "US", "US-CA"),
    ],
)
def test_names_that_differ_in_substance_are_not_two_spellings(kind: NameKind, one: str, other: str) -> None:
    assert folded(kind, one) != folded(kind, other)


# The closed policy in place of an unusable file


def test_a_usable_file_gives_its_policy_and_no_reason(write: Write) -> None:
    path = write(POLICY)
    assert load_policy_or_closed(path, place("eu-west-1", "EU")) == (load_policy(path), None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        ("version: [", "line 1: while parsing a flow node: expected the node content, but found '<stream end>'"),
        (minimal(proces=1), "line 1: proces: is not a known key; is `process` meant?"),
        (minimal(process={}), "line 1: process: allows nowhere: it names neither a jurisdiction nor a region"),
        (minimal(region="eu-west-3"), "is for eu-west-3 (EU), and this gateway stands in eu-west-1 (EU)"),
        (
            minimal(jurisdiction="UK", process={"jurisdictions": ["UK"]}),
            "is for eu-west-1 (UK), and this gateway stands in eu-west-1 (EU)",
        ),
    ],
)
def test_an_unusable_file_closes_the_region_and_says_why(write: Write, text: str | None, reason: str) -> None:
    path = write(text or "")
    if text is None:
        path.unlink()
    home, abroad, anyone = place("eu-west-1", "EU"), place("eu-central-1", "EU"), TenantName("anyone")
    policy, told = load_policy_or_closed(path, home)
    assert told == f"{path}: {reason}"
    assert policy.closed_reason == told
    assert may_process(policy, anyone, home).allowed
    assert not may_process(policy, anyone, abroad).allowed
    assert not may_accept(policy, abroad).allowed


# The published schema and the examples


def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(PUBLISHED_SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def plain_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_published_schema_is_the_generated_one() -> None:
    assert json.loads(PUBLISHED_SCHEMA.read_text()) == policy_schema(), "run: nightside policy schema"


def test_there_is_an_example_for_each_part_of_the_world() -> None:
    jurisdictions = {load_policy(path).place.jurisdiction for path in EXAMPLES}
    assert jurisdictions == {"EU", "UK", "CH", "US", "IN", "BR", "JP", "SG"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_usable_valid_and_named_after_its_region(path: Path) -> None:
    policy = load_policy(path)
    assert policy.place.region == path.stem
    assert list(validator().iter_errors(plain_yaml(path))) == []
    assert "not legal advice" in path.read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"accept": ...},
        {"colour": "red"},
        {"process": {"jurisdictions": ["EU", "EU"]}},
        {"process": {"jurisdictions": ["E U"]}},
        {"process": {"jurisdictions": "EU"}},
        {"process": {"jurisdictions": ["EU"], "deny": []}},
        {"accept": {"regions": [f"r{number}" for number in range(NAMES_MAX + 1)]}},
        {"tenants": {" bank": {"process": {"jurisdictions": ["EU"]}}}},
        {"tenants": {"bank": {}}},
        {"logging": {"tenant": "yes"}},
        {"region": None},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(write: Write, changes: dict[str, object]) -> None:
    text = minimal(**changes)
    assert not validator().is_valid(json.loads(text))
    assert faults_of(write(text))
