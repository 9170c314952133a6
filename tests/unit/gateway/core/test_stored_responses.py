from __future__ import annotations

from gateway.core.stored_responses import StoredResponses, stored_response_key
from gateway.core.vocabulary import ReplicaId, TenantName, replica_target

A, B = replica_target(ReplicaId("a")), replica_target(ReplicaId("b"))


def test_a_key_belongs_to_one_tenant_and_one_response() -> None:
    pairs = [("acme", "r1"), ("acme", "r2"), ("other", "r1"), ("acm", "er1"), ("acmer1", "")]
    keys = {stored_response_key(TenantName(tenant), response_id) for tenant, response_id in pairs}
    assert len(keys) == len(pairs)
    assert all(len(key) == 32 for key in keys)


def test_a_key_shows_nothing_and_takes_any_text() -> None:
    assert "resp" not in stored_response_key(TenantName("acme"), "resp_1")
    assert stored_response_key(TenantName("acme"), "\ud800")


def test_the_longest_unused_is_forgotten_first() -> None:
    stored = StoredResponses(2)
    stored.put("1", A)
    stored.put("2", B)
    assert stored.get("1") == A
    stored.put("3", A)
    assert (stored.get("1"), stored.get("2"), len(stored)) == (A, None, 2)
    stored.configure(1)
    assert (stored.get("3"), stored.get("1")) == (None, A)
