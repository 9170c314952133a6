from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.oidc import ChoiceConfig, ClientIssuerConfig, OidcConfig, PlanConfig
from gateway.config.places import ProcessSection
from gateway.core.vocabulary import Jurisdiction, ModelName, PlaceRule, ServiceClass, TenantName
from gateway.door.limits import Meters
from gateway.request.callers import NO_BUDGET, Budget, KeyId, KeyLimits
from gateway.security.tokens import ClientGrants, Subjects, chosen
from mesh.clock import Clock
from mesh.faults import ConfigError
from mesh.tokens.words import TokenFault, TokenRefused
from tests.support.clock import StillClock

ISSUER = ClientIssuerConfig(
    name="corp", issuer="https://login.example.net", audiences=("nightside",), tenant=ChoiceConfig(claim="org.id")
)
CLAIMS: dict[str, Any] = {"sub": "alice", "org": {"id": "acme"}, "plan": "gold", "homes": ["x", "eu-only"]}
FULL = OidcConfig(
    rules={"eu": ProcessSection(jurisdictions=("EU",))},
    plans={
        "gold": PlanConfig(
            concurrency=9,
            requests_per_minute=60,
            tokens_per_minute=700,
            tokens_per_day=8,
            models=("m",),
            service_class=ServiceClass.BATCH,
        ),
        "proxy": PlanConfig(may_name_tenant=True),
    },
)


def grants(config: OidcConfig = FULL) -> ClientGrants:
    return ClientGrants(config, Clock())


def test_a_token_without_a_plan_is_bounded_by_the_gateway_alone() -> None:
    key = grants().grant(ISSUER, CLAIMS)
    assert (key.tenant, key.limits, key.process, key.models) == (TenantName("acme"), KeyLimits(), None, None)
    assert key.budget is NO_BUDGET
    assert not key.may_name_tenant
    assert key.is_token


def test_claims_pick_among_what_the_file_has() -> None:
    issuer = replace(
        ISSUER,
        plan=ChoiceConfig(claim="plan"),
        process=ChoiceConfig(claim="homes", map={"us-only": "us", "eu-only": "eu"}),
    )
    key = grants().grant(issuer, CLAIMS)
    assert key.limits == KeyLimits(9, 60, 700)
    assert key.service_class is ServiceClass.BATCH
    assert key.budget == Budget(8, None)
    assert key.models == frozenset({ModelName("m")})
    assert key.process == PlaceRule(frozenset({Jurisdiction("EU")}))
    assert grants().grant(issuer, {**CLAIMS, "plan": "proxy"}).may_name_tenant


@pytest.mark.parametrize(
    "claims", [{"plan": "unheard-of"}, {"plan": None}, {"homes": ["us"]}, {"org": {}}, {"org": {"id": "a b"}}]
)
def test_what_the_file_does_not_have_is_granted_to_nobody(claims: dict[str, object]) -> None:
    issuer = replace(
        ISSUER, plan=ChoiceConfig(claim="plan"), process=ChoiceConfig(claim="homes", map={"eu-only": "eu"})
    )
    with pytest.raises(TokenRefused) as refused:
        grants().grant(issuer, {**CLAIMS, **claims})
    assert refused.value.reason is TokenFault.NOT_MAPPED
    assert "unheard-of" not in refused.value.words, "what the token says is not said again"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ChoiceConfig(value="always"), "always"),
        (ChoiceConfig(claim="tenant"), "acme"),
        (ChoiceConfig(claim="tenant", map={"acme": "a", "x": "b"}), "a"),
        (ChoiceConfig(claim="groups", map={"second": "2", "first": "1"}), "2"),
        (ChoiceConfig(claim="groups", default="d"), "d"),
        (ChoiceConfig(claim="tenant", map={"x": "b"}, default="d"), "d"),
        (ChoiceConfig(claim="missing", default="d"), "d"),
        (ChoiceConfig(claim="odd", default="d"), "d"),
        (ChoiceConfig(claim="number"), "17"),
    ],
)
def test_a_choice(choice: ChoiceConfig, expected: str) -> None:
    claims = {"tenant": "acme", "groups": ["first", "second"], "odd": "../etc", "number": 17}
    assert chosen(choice, claims, "tenant") == expected


class Wall(StillClock):
    def wall_ns(self) -> int:
        return self.now


ACME, OTHER = TenantName("acme"), TenantName("other")


def test_holders_are_told_apart_by_pseudonyms_that_only_the_secret_explains() -> None:
    ids = {
        Subjects(secret, Wall(), 10, 10).key_id(issuer, ACME, subject)
        for secret in ("", "s")
        for issuer in ("corp", "lab")
        for subject in ("alice", "bob")
    }
    assert len(ids) == 8
    assert not any("alice" in each or "bob" in each for each in ids)
    again = Subjects("s", Wall(), 10, 10).key_id("corp", OTHER, "alice")
    assert again == Subjects("s", Wall(), 10, 10).key_id("corp", ACME, "alice"), "wherever it is, and whose it is"


def test_above_a_bound_they_are_counted_together_until_the_day_is_over() -> None:
    clock = Wall()
    subjects = Subjects("", clock, 5, 3)
    first = [subjects.key_id("corp", ACME, f"s{number}") for number in range(5)]
    assert first[3:] == [KeyId("corp-others")] * 2
    assert len(set(first)) == 4
    others = [subjects.key_id("corp", OTHER, f"s{number}") for number in range(3)]
    assert others[2] == KeyId("corp-others"), "of all together"
    assert [subjects.key_id("corp", ACME, f"s{number}") for number in range(3)] == first[:3], "who is known stays known"
    for number in range(1000):
        assert subjects.key_id("corp", TenantName(f"t{number}"), "x") == KeyId("corp-others")
    assert len(subjects) == 5
    assert len(subjects._known) == 2
    clock.now += 86_400_000_000_000
    assert subjects.key_id("corp", ACME, "s4") != KeyId("corp-others")


def test_above_the_bound_nobody_has_another_plans_limits_begin_anew() -> None:
    config = replace(FULL, subjects_max=1, subjects_per_tenant_max=1)
    issuer = replace(ISSUER, plan=ChoiceConfig(claim="plan", map={"paid": "gold", "proxy": "proxy"}))
    made = grants(config)
    made.grant(issuer, {**CLAIMS, "plan": "paid"})
    bounded, unbounded = (made.grant(issuer, {**CLAIMS, "sub": "eve", "plan": plan}) for plan in ("paid", "proxy"))
    meters, let_in = Meters(), 0
    for _ in range(200):
        for key in (bounded, unbounded):
            meter = meters.of(key)
            if meter.enter(0) is None:
                meter.leave()
                let_in += key is bounded
    assert let_in == 60, "what a minute has, however often others come between"


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"oidc\.subject_secret_file: .*nothing cannot be read"):
        ClientGrants(OidcConfig(subject_secret_file=tmp_path / "nothing"), Clock())
