from __future__ import annotations

from gateway.core.response_key import response_key
from gateway.core.vocabulary import TenantName


def test_a_key_belongs_to_one_tenant_and_one_response() -> None:
    pairs = [("acme", "r1"), ("acme", "r2"), ("other", "r1"), ("acm", "er1"), ("acmer1", "")]
    keys = {response_key(TenantName(tenant), response_id) for tenant, response_id in pairs}
    assert len(keys) == len(pairs)
    assert all(len(key) == 32 for key in keys)


def test_a_key_shows_nothing_and_takes_any_text() -> None:
    assert "resp" not in response_key(TenantName("acme"), "resp_1")
    assert response_key(TenantName("acme"), "\ud800")
