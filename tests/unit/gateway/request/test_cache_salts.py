from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gateway.core.placement.prefix_chain import prefix_salt
from gateway.core.vocabulary import ModelName, TenantName
from gateway.request.bodies import read_body
from gateway.request.cache_salts import CacheSalts
from gateway.request.engine_api import CHAT_PATH, COUNT_TOKENS_PATH
from gateway.request.legs import CacheSalt

ACME, BETA, GAMMA = TenantName("acme"), TenantName("beta"), TenantName("gamma")
APART = CacheSalts()


def salt_of(tenant: TenantName, salts: CacheSalts = APART, path: str = CHAT_PATH, **fields: Any) -> CacheSalt | None:
    body = read_body(path, json.dumps({"model": "m", **fields}).encode(), passes_priority=False)
    return salts.salt(salts.domain(tenant), body.salt, body)


def text_of(tenant: TenantName, salts: CacheSalts = APART, **fields: Any) -> str:
    salt = salt_of(tenant, salts, **fields)
    assert salt is not None
    return salt.text


def test_each_tenant_and_each_salt_of_its_own_is_apart_from_all_others() -> None:
    made = [text_of(ACME), text_of(BETA), text_of(ACME, cache_salt="s"), text_of(BETA, cache_salt="s")]
    made += [text_of(ACME, cache_salt=""), text_of(ACME, extra_key="s"), text_of(ACME, cache_salt="s", extra_key="s")]
    made += [text_of(TenantName("ac"), cache_salt="mes"), text_of(ACME, cache_salt="ü€")]
    assert len(set(made)) == len(made)


def test_it_is_the_same_in_every_gateway_and_does_not_change_between_versions() -> None:
    """Different salts would lose engines' caches on an upgrade, and would not match those of regions not upgraded
    yet."""
    assert text_of(ACME) == text_of(ACME, CacheSalts()) == "67db0e9304be5c5e6f8e1d3004e9bc26"
    assert text_of(ACME, cache_salt="s") == "4d239b476dd4cc0a8cdf854eb1715632"


def test_engines_take_it_whatever_the_tenant_or_the_client_is_called() -> None:
    for made in (text_of(TenantName("a@b/c\\d")), text_of(ACME, cache_salt="@/\\\0" * 1000)):
        assert re.fullmatch("[0-9a-f]{32}", made)


def test_a_secret_makes_others_that_nobody_can_work_out() -> None:
    one, other = (CacheSalts(secret) for secret in ("a" * 32, "b" * 32))
    assert len({text_of(ACME), text_of(ACME, one), text_of(ACME, other)}) == 3


def test_tenants_that_share_on_purpose_are_one_to_engines_and_to_us() -> None:
    shared = CacheSalts(shared_tenants=(ACME, BETA))
    assert text_of(ACME, shared) == text_of(BETA, shared) != text_of(GAMMA, shared)
    assert text_of(ACME, shared, cache_salt="s") != text_of(ACME, shared)
    assert shared.domain(ACME) == shared.domain(BETA) != shared.domain(GAMMA)
    assert text_of(GAMMA, shared) == text_of(GAMMA), "whoever shares nothing is as before"


def test_without_isolation_bodies_go_out_as_they_came_and_everybody_is_one() -> None:
    off = CacheSalts(isolate_tenants=False)
    assert salt_of(ACME, off, cache_salt="s") is None
    assert off.domain(ACME) == off.domain(BETA)


def test_what_fills_no_cache_needs_no_salt() -> None:
    assert salt_of(ACME, path=COUNT_TOKENS_PATH) is None


def test_whether_it_replaces_one_of_the_client_s_is_told() -> None:
    for fields, replaces in (({}, False), ({"cache_salt": "s"}, True), ({"cache_salt": None}, True)):
        salt = salt_of(ACME, **fields)
        assert salt is not None
        assert salt.replaces_own is replaces


@pytest.mark.parametrize("config", [{}, {"shared_tenants": (ACME, BETA)}, {"isolate_tenants": False}])
def test_our_own_knowledge_of_prompts_is_kept_apart_just_as_engines_are(config: dict[str, Any]) -> None:
    """A match that no engine has would send requests to the wrong place; a missed match costs a prefill."""
    salts, model = CacheSalts(**config), ModelName("m")
    callers = [(tenant, own) for tenant in (ACME, BETA, GAMMA) for own in (None, "s", "t")]
    for tenant, own in callers:
        for other, others in callers:
            same_here = prefix_salt(model, salts.domain(tenant), own) == prefix_salt(model, salts.domain(other), others)
            if config == {"isolate_tenants": False}:
                assert same_here is (own == others)
            else:
                there = (text_of(each, salts, **_named(salt)) for each, salt in ((tenant, own), (other, others)))
                assert same_here is (len(set(there)) == 1)


def _named(salt: str | None) -> dict[str, str]:
    return {} if salt is None else {"cache_salt": salt}
