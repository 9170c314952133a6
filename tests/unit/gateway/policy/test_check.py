from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.check import Check, PolicyFinding, Severity, check_policies
from mesh.faults import FileFault
from tests.support.policies import Rule, Stated, by_jurisdiction, by_region, stated


def check(*policies: Stated) -> Check:
    return check_policies(dict(policies))


def found(checked: Check) -> list[tuple[str, str, str, str]]:
    return [(each.severity, each.path.stem, each.fault.key, each.fault.message) for each in checked.findings]


def test_two_files_for_one_region_are_a_contradiction() -> None:
    first = stated("dublin", "EU", file="first")
    second = stated("dublin", "IE", file="second")
    checked = check(first, second)
    message = "first.yaml is a policy for this region too, and states it as dublin (EU)"
    assert ("contradiction", "second", "region", message) in found(checked)
    assert checked.result == "contradiction"
    assert len(checked.regions) == 1


@pytest.mark.parametrize(
    ("accept", "key", "message"),
    [
        (
            by_jurisdiction("eu"),
            "accept.jurisdictions",
            "jurisdiction eu is written EU in dublin.yaml",
        ),
        (by_region("Dublin"), "accept.regions", "region Dublin is written dublin in dublin.yaml"),
        (by_region("EU"), "accept.regions", "EU stands here as a region, but other files know it as a jurisdiction"),
        (
            by_jurisdiction("dublin"),
            "accept.jurisdictions",
            "dublin stands here as a jurisdiction, but other files know it as a region",
        ),
    ],
)
def test_a_name_that_means_another_place_is_a_contradiction(accept: Rule, key: str, message: str) -> None:
    dublin, virginia = stated("dublin", "EU"), stated("virginia", "US", accept=accept)
    assert found(check(dublin, virginia)) == [("contradiction", "virginia", key, message)]


def test_one_tenant_in_two_spellings_is_a_contradiction() -> None:
    tenants = [{name: {"process": by_jurisdiction("EU")}} for name in ("bank", "Bank")]
    files = [stated(region, "EU", tenants=each) for region, each in zip(("dublin", "lyon"), tenants, strict=True)]
    assert ("contradiction", "lyon", "tenants.Bank", "tenant Bank is written bank in dublin.yaml") in found(
        check(*files)
    )


def test_naming_a_region_that_takes_in_nothing_is_a_contradiction() -> None:
    dublin = stated("dublin", "EU", process={**by_jurisdiction("EU"), **by_region("virginia")})
    virginia = stated("virginia", "US")
    assert found(check(dublin, virginia)) == [
        (
            "contradiction",
            "dublin",
            "process.regions",
            "names virginia, which takes in nothing from here: in virginia.yaml, "
            "accept names neither region dublin nor jurisdiction EU",
        )
    ]


def test_naming_its_jurisdiction_alone_is_a_note() -> None:
    dublin, virginia = stated("dublin", "EU", process=by_jurisdiction("EU", "US")), stated("virginia", "US")
    checked = check(dublin, virginia)
    assert [each[:3] for each in found(checked)] == [("note", "dublin", "process.jurisdictions")]
    assert checked.is_fine


def test_what_follows_from_a_file_at_odds_with_itself_is_not_reported_as_well() -> None:
    dublin = stated("dublin", "EU", process={**by_jurisdiction("EU"), **by_region("virginia")})
    virginia = stated("virginia", "US", process={}, accept=by_jurisdiction("EU"))
    assert [each[:3] for each in found(check(dublin, virginia))] == [("contradiction", "virginia", "process")]


def test_a_tenants_rule_that_names_a_refusing_region_is_a_contradiction_unless_the_tenant_never_gets_in() -> None:
    virginia = stated("virginia", "US", tenants={"bank": {"process": by_jurisdiction("US")}})
    for home, contradictions in ((["dublin"], [("dublin", "tenants.bank.process.regions")]), ([], [])):
        dublin = stated("dublin", "EU", tenants={"bank": {"process": by_region(*home, "virginia")}})
        assert [
            (path, key) for severity, path, key, _ in found(check(dublin, virginia)) if severity == "contradiction"
        ] == contradictions


def test_a_region_that_no_file_is_for_is_a_warning_and_a_jurisdiction_a_note() -> None:
    process = {**by_jurisdiction("EU", "UK"), "denied_regions": ["eu-suoth-1"]}
    checked = check(stated("dublin", "EU", process=process, accept=by_region("lyon")))
    assert found(checked) == [
        ("warning", "dublin", "process.denied_regions", "none of the given files is for region eu-suoth-1"),
        ("warning", "dublin", "accept.regions", "none of the given files is for region lyon"),
        ("note", "dublin", "process.jurisdictions", "none of the given files is for a region in jurisdiction UK"),
    ]
    assert checked.is_fine


def test_a_denial_of_a_region_from_elsewhere_is_a_note() -> None:
    tenants = {"bank": {"process": by_jurisdiction("EU")}}
    dublin = stated("dublin", "EU", process={**by_jurisdiction("EU"), "denied_regions": ["london"]}, tenants=tenants)
    london = stated("london", "UK")
    lyon = stated("lyon", "EU", process={**by_jurisdiction("EU"), "denied_regions": ["dublin"]}, tenants=tenants)
    message = "denies london (UK), which nothing beside it would allow"
    denials = [each for each in found(check(dublin, london, lyon)) if "denies" in each[3]]
    assert denials == [("note", "dublin", "process.denied_regions", message)]


def test_a_tenant_forgotten_in_one_file_is_a_warning() -> None:
    tenants = {name: {"process": by_jurisdiction("EU")} for name in ("bank", "clinic")}
    checked = check(stated("dublin", "EU", tenants=tenants), stated("virginia", "US"))
    assert found(checked) == [
        (
            "warning",
            "virginia",
            "tenants",
            "tenants bank and clinic have rules in other files and none here, where the region's `process` applies",
        )
    ]


def test_a_tenants_rule_wider_than_its_regions_is_a_note() -> None:
    tenants = {"bank": {"process": by_jurisdiction("EU", "US")}}
    dublin = stated("dublin", "EU", tenants=tenants)
    virginia = stated("virginia", "US", accept=by_jurisdiction("EU"), tenants=tenants)
    lyon = stated("lyon", "EU", process=by_jurisdiction("EU", "US"), tenants=tenants)
    wider = "tenant bank may go to {}, where the region's own `process` does not"
    assert [each for each in found(check(dublin, virginia, lyon)) if each[2] == "tenants.bank.process"] == [
        ("note", "dublin", "tenants.bank.process", wider.format("virginia (US)")),
        ("note", "virginia", "tenants.bank.process", wider.format("dublin (EU) and lyon (EU)")),
    ]


def test_a_tenants_rule_that_offers_a_jurisdiction_in_vain_is_a_note() -> None:
    tenants = {"bank": {"process": by_jurisdiction("EU", "US")}}
    dublin, virginia = stated("dublin", "EU", tenants=tenants), stated("virginia", "US", tenants=tenants)
    assert (
        "note",
        "dublin",
        "tenants.bank.process.jurisdictions",
        "lets requests go to virginia (US), which takes in nothing from here: "
        "accept names neither region dublin nor jurisdiction EU",
    ) in found(check(dublin, virginia))


# Results


def test_a_file_at_odds_with_itself_stands_for_a_closed_region_and_says_why() -> None:
    checked = check(stated("dublin", "EU", process={}))
    assert checked.regions[0].is_closed
    assert checked.regions[0].policy.closed_reason == f"dublin.yaml: process: {checked.findings[0].fault.message}"


def test_a_file_without_a_policy_counts_more_than_a_contradiction_and_is_told_first() -> None:
    path, policy = stated("dublin", "EU", process={})
    invalid = PolicyFinding(Severity.INVALID, Path("none.yaml"), FileFault("", "cannot be read"))
    checked = check_policies({path: policy}, [invalid])
    assert checked.result == "invalid"
    assert [each.severity for each in checked.findings] == [Severity.INVALID, Severity.CONTRADICTION]


def test_the_gravest_is_told_first() -> None:
    dublin = stated("dublin", "EU", process=by_jurisdiction("EU", "UK"), accept=by_region("lyon"))
    virginia = stated("virginia", "US", accept=by_jurisdiction("eu"))
    severities = [each.severity for each in check(dublin, virginia).findings]
    assert severities == [Severity.CONTRADICTION, Severity.WARNING, Severity.NOTE]
