from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.app.budgets import Budgets
from gateway.core.kernel.residency import TenantPolicy
from gateway.core.vocabulary import GatewayId, Place, TenantName
from gateway.peers.codec import read_budget_uses
from gateway.records.peer_usage import NOTHING, BudgetUse
from gateway.records.usage_book import UsageAmounts, UsageBook
from gateway.request.callers import KeyId
from gateway.security.keyring import Keyring
from gateway.security.keys_editing import add_key, change_key, set_tenant_budget
from mesh.clock import Clock
from mesh.wire import WireError
from protos.mesh.v1 import peer_pb2 as pb
from tests.hostile.tenants_told import BUDGET_CASES, BudgetCase
from tests.support.core import AP, EU, US, policy, rule

ACME = TenantName("acme")
PEER = GatewayId("eu-1")
NAME = ("key", "a")


class Noon(Clock):
    """Clock at noon of 22 November 2026."""

    def wall_ns(self) -> int:
        return 1_795_348_800 * 10**9


class House:
    def __init__(self, folder: Path, **budget: int) -> None:
        self.keys = folder / "keys.yaml"
        add_key(self.keys, "a", {"tenant": ACME, **budget}, 0, may_be_missing=True)
        add_key(self.keys, "free", {"tenant": ACME}, 0)
        self.keyring = Keyring(self.keys, Noon())
        self.book = UsageBook()
        self.budgets = Budgets(self.book, self.keyring, Noon())
        self.budgets.begin()

    def use(self, key: str, tokens: int) -> None:
        self.book.settle(KeyId(key), ACME, 0, UsageAmounts(1, tokens), Noon().wall_ns())

    def told(
        self, place: Place | None = EU, tenants: dict[TenantName, TenantPolicy] | None = None
    ) -> Sequence[BudgetUse]:
        return self.budgets.told_to(place, policy(US, tenants=tenants), 0)[0]


def word(day: str = "2026-11-22", name: tuple[str, str] = NAME) -> BudgetUse:
    return BudgetUse(name, day, 60, 70)


def test_what_keys_with_a_budget_used_is_told_by_their_ids(tmp_path: Path) -> None:
    house = House(tmp_path, tokens_per_day=100)
    house.use("a", 5)
    house.use("free", 7)
    assert house.told() == [BudgetUse(NAME, "2026-11-22", 5, 5)]


def test_a_region_that_may_not_know_of_a_tenant_is_told_of_no_budget_of_its(tmp_path: Path) -> None:
    house = House(tmp_path, tokens_per_day=100)
    house.use("a", 5)
    keeps = {ACME: TenantPolicy(process=rule(US, EU))}
    assert len(house.told(EU, keeps)) == 1
    assert house.told(AP, keeps) == []
    assert house.told(None, keeps) == []


async def test_budgets_come_and_go_with_the_keys_file(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.use("a", 5)
    assert house.told() == []
    set_tenant_budget(house.keys, ACME, {"tokens_per_month": 100})
    await house.keyring.reload()
    assert [each.name for each in house.told()] == [("tenant", "acme")]
    change_key(house.keys, "a", {"tokens_per_day": 10}, 0)
    await house.keyring.reload()
    assert {each.name for each in house.told()} == {NAME, ("tenant", "acme")}


def test_what_is_heard_counts_where_the_budget_is_ours_and_the_day_is_near(tmp_path: Path) -> None:
    house = House(tmp_path, tokens_per_day=100)
    house.budgets.hear(PEER, [word(name=("key", "free")), word(name=("key", "theirs"))])
    assert (len(house.book.others), house.budgets.not_kept) == (0, 0)
    house.budgets.hear(PEER, [word("2026-11-24"), word("9999-12-31"), word("2026-11-20")])
    assert (len(house.book.others), house.budgets.not_kept) == (0, 3)
    house.budgets.hear(PEER, [word()])
    assert house.budgets.by_others(NAME)[:2] == (60, 70)


def test_without_keys_nothing_is_told_and_nothing_kept() -> None:
    book = UsageBook()
    budgets = Budgets(book, None, Noon())
    budgets.begin()
    budgets.hear(PEER, [word()])
    book.settle(KeyId(""), ACME, 0, UsageAmounts(1, 5), Noon().wall_ns())
    assert budgets.told_to(EU, policy(US), 0) == ([], 0)
    assert len(book.others) == 0


@pytest.mark.parametrize("case", BUDGET_CASES, ids=lambda case: case.name)
def test_a_lying_peer_can_say_that_a_budget_is_used_up_and_nothing_else(tmp_path: Path, case: BudgetCase) -> None:
    house = House(tmp_path, tokens_per_day=100, tokens_per_month=1000)
    message = pb.SubscribeResponse(budget_uses=[pb.BudgetUse(**each) for each in case.said])
    if not case.believed:
        with pytest.raises(WireError):
            read_budget_uses(message)
        return
    for each in message.budget_uses:  # one entry after the other, then all of them again
        house.budgets.hear(PEER, read_budget_uses(pb.SubscribeResponse(budget_uses=[each])))
    house.budgets.hear(PEER, read_budget_uses(message))
    by_others = house.budgets.by_others(NAME)
    assert (by_others.in_day + by_others.set_aside < 100 and by_others.in_month < 1000) is case.left
    assert len(house.book.others) <= 1, "what is no budget of ours is not kept"
    assert house.budgets.by_others(("key", "free")) == house.budgets.by_others(("tenant", ACME)) == NOTHING
