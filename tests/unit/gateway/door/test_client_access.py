from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.core.allowance import LimitAllowance
from gateway.core.vocabulary import GatewayId, RequestId, TenantName
from gateway.door import errors
from gateway.door.client_access import ClientAccess
from gateway.door.errors import ClientFault, ErrorKind
from gateway.door.settings import HttpSettings
from gateway.records.usage_book import UsageBook
from gateway.request.callers import Budget, ClientKey, KeyId, KeyLimits
from gateway.request.legs import RequestSummary
from mesh.clock import Clock
from tests.support.core import US, profile

SETTINGS = HttpSettings(GatewayId("us-1"), US, output_tokens_reserved=50)
KEY = ClientKey(KeyId("k1"), TenantName("acme"))
PROFILE = replace(profile("r1"), output_tokens_max=None)


def entrance(*keys: ClientKey, running: Sequence[str] = (), **options: Any) -> ClientAccess:
    """Entrance whose keys' secrets are their ids; without keys none is needed."""
    by_id = {key.key_id: key for key in keys}
    check: Callable[[str], ClientKey | None] | None = (lambda shown: by_id.get(KeyId(shown))) if keys else None
    is_running: Callable[[RequestId], bool] = lambda request_id: request_id in running  # noqa: E731
    return ClientAccess(SETTINGS, Clock(), is_running, check, **options)


def fault_of(act: Callable[[], object]) -> ErrorKind:
    with pytest.raises(ClientFault) as caught:
        act()
    return caught.value.kind


@pytest.mark.parametrize("headers", [{"authorization": "Bearer k1"}, {"x-api-key": "k1"}])
def test_a_key_names_its_tenant(headers: Mapping[str, str]) -> None:
    caller = entrance(KEY).caller_of({**headers, "x-request-id": "r1"})
    assert (caller.request_id, caller.tenant, caller.key) == ("r1", "acme", KEY)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer k2"}, {"authorization": "Basic k1"}])
def test_a_missing_key_and_a_wrong_one_are_refused_alike(headers: Mapping[str, str]) -> None:
    assert fault_of(lambda: entrance(KEY).caller_of(headers)) is errors.INVALID_API_KEY


def test_without_keys_every_client_is_let_in() -> None:
    door = entrance()
    caller = door.caller_of({})
    assert caller.key is None
    assert door.meter_of(caller) is None
    assert door.headers(caller, None) == {}
    assert door.take(caller, None, 1_000_000_000) == 0


def test_an_id_that_is_running_is_replaced() -> None:
    door = entrance(running=["r1"])
    assert door.caller_of({"x-request-id": "r1"}).request_id not in ("r1", "")
    assert door.caller_of({"x-request-id": "r2"}).request_id == "r2"


def test_no_token_is_looked_for_where_there_is_no_issuer() -> None:
    assert not entrance(KEY).shows_token({"authorization": "Bearer a.b.c"})


@pytest.mark.parametrize(("output", "expected"), [(None, 50), (7, 7), (-3, 0), (0, 0)])
def test_prompt_and_output_are_reserved(output: int | None, expected: int) -> None:
    door = entrance()
    asked = replace(PROFILE, output_tokens_max=output)
    least = door.reservation(replace(PROFILE, output_tokens_max=0), generates=True)
    assert door.reservation(asked, generates=True) == least + expected
    assert door.reservation(asked, generates=False) == 0


def test_a_key_has_so_many_places() -> None:
    limited = replace(KEY, limits=KeyLimits(concurrency_max=1))
    door = entrance(limited)
    caller = door.caller_of({"x-api-key": "k1"})
    meter = door.meter_of(caller)
    assert meter is not None
    assert door.meter_of(door.caller_of({"x-api-key": "k1"})) is meter
    door.enter(meter)
    assert fault_of(lambda: door.enter(meter)).code == errors.CONCURRENCY_EXCEEDED.code
    meter.leave()
    door.enter(meter)


def test_and_so_many_tokens_of_which_no_more_is_reserved_than_a_full_bucket() -> None:
    door = entrance(replace(KEY, limits=KeyLimits(tokens_per_minute=100)))
    caller = door.caller_of({"x-api-key": "k1"})
    meter = door.meter_of(caller)
    assert door.take(caller, meter, 1000) == 100
    refusal = fault_of(lambda: door.take(caller, meter, 1000))
    assert refusal.code == errors.TOKEN_RATE_EXCEEDED.code
    assert refusal.retry_after_s
    door.settle(caller, meter, PROFILE, RequestSummary(prompt_tokens=1, output_tokens=1), tokens=1000, taken=100)
    assert door.take(caller, meter, 10) == 10
    assert any(name.startswith("x-ratelimit") for name in door.headers(caller, meter))


def test_a_budget_that_is_used_up_is_told_as_such() -> None:
    door = entrance(replace(KEY, budget=Budget(tokens_per_day=100)))
    caller = door.caller_of({"x-api-key": "k1"})
    assert door.take(caller, None, 100) == 0
    assert fault_of(lambda: door.take(caller, None, 1)).code == errors.BUDGET_EXCEEDED.code
    summary = RequestSummary(prompt_tokens=10, output_tokens=10)
    door.settle(caller, None, PROFILE, summary, tokens=100, taken=0)
    door.take(caller, None, 1)


def test_while_usage_is_not_known_a_key_with_a_budget_is_refused_and_others_are_not() -> None:
    book = UsageBook()
    book.is_unknown = True
    other = ClientKey(KeyId("k2"), TenantName("acme"))
    door = entrance(replace(KEY, budget=Budget(tokens_per_day=100)), other, book=book)
    assert fault_of(lambda: door.take(door.caller_of({"x-api-key": "k1"}), None, 1)) is errors.USAGE_UNKNOWN
    door.take(door.caller_of({"x-api-key": "k2"}), None, 1)


def test_what_is_left_of_a_tenant_is_asked_for_at_the_time() -> None:
    asked: list[TenantName] = []

    def allowances(tenant: TenantName, _now_ns: int) -> Sequence[LimitAllowance]:
        asked.append(tenant)
        return ()

    door = entrance(KEY, allowances=allowances)
    door.headers(door.caller_of({"x-api-key": "k1"}), None)
    assert asked == ["acme"]
