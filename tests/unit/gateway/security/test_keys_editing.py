from __future__ import annotations

from pathlib import Path

import pytest

from gateway.request.callers import NO_BUDGET, Budget
from gateway.security.keyring import Keyring
from gateway.security.keys import parse_time, read_keys_file
from gateway.security.keys_editing import (
    KeyUnknown,
    add_key,
    change_key,
    remove_key,
    rotate_key,
    set_tenant_budget,
)
from mesh.clock import Clock
from mesh.faults import ConfigError

NOW = 1_800_000_000_000_000_000  # 2027-01-15T08:00:00Z
DAY = 86_400 * 10**9


class At(Clock):
    def __init__(self, wall_ns: int = NOW) -> None:
        self.at_ns = wall_ns

    def wall_ns(self) -> int:
        return self.at_ns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


@pytest.fixture
def first(path: Path) -> str:
    return add_key(path, "a", {"tenant": "acme"}, NOW, may_be_missing=True).key


class TestRotation:
    def test_two_secrets_open_for_a_while_and_then_one(self, path: Path, first: str) -> None:
        second = rotate_key(path, "a", 7 * DAY, NOW)
        assert second.old_until == parse_time("2027-01-22T08:00:00Z")
        clock = At()
        ring = Keyring(path, clock)
        opened = [ring.check(first), ring.check(second.key)]
        assert opened[0] == opened[1] is not None
        assert [list(used) for used in ring.last_used_ns] == [["a"], ["a"]]
        clock.at_ns += 7 * DAY
        assert ring.check(first) is None
        assert ring.check(second.key) is not None

    def test_there_are_never_three(self, path: Path, first: str) -> None:
        second = rotate_key(path, "a", DAY, NOW).key
        third = rotate_key(path, "a", DAY, NOW).key
        ring = Keyring(path, At())
        assert [ring.check(each) is not None for each in (first, second, third)] == [False, True, True]

    def test_at_once(self, path: Path, first: str) -> None:
        second = rotate_key(path, "a", 0, NOW)
        ring = Keyring(path, At())
        assert second.old_until is None
        assert [ring.check(each) is not None for each in (first, second.key)] == [False, True]

    def test_a_key_that_is_disabled_or_expired_is_so_with_either(self, path: Path, first: str) -> None:
        second = rotate_key(path, "a", 7 * DAY, NOW).key
        change_key(path, "a", {"expires": "2027-01-16"}, NOW)
        ring = Keyring(path, At(NOW + DAY))
        assert [ring.check(each) for each in (first, second)] == [None, None]
        change_key(path, "a", {"expires": None, "disabled": True}, NOW)
        ring = Keyring(path, At())
        assert [ring.check(each) for each in (first, second)] == [None, None]

    def test_not_for_ever(self, path: Path, first: str) -> None:
        with pytest.raises(ConfigError, match="at most 366 days"):
            rotate_key(path, "a", 367 * DAY, NOW)


class TestChanges:
    @pytest.mark.parametrize("expires", ["2027-01-15", "2027-01-15T08:00:00Z", "2020-01-01"])
    def test_a_date_that_is_past_is_refused(self, path: Path, first: str, expires: str) -> None:
        with pytest.raises(ConfigError, match=f"expires: {expires} is in the past"):
            add_key(path, "b", {"tenant": "acme", "expires": expires}, NOW)
        with pytest.raises(ConfigError, match=f"expires: {expires} is in the past"):
            change_key(path, "a", {"expires": expires}, NOW)
        assert [entry.id for entry in read_keys_file(path).keys] == ["a"]

    def test_an_option_is_changed_and_taken_away(self, path: Path, first: str) -> None:
        change_key(path, "a", {"tokens_per_day": 5, "models": ["m"]}, NOW)
        assert Keyring(path, At()).check(first).budget == Budget(tokens_per_day=5)  # type: ignore[union-attr]
        change_key(path, "a", {"tokens_per_day": None}, NOW)
        found = Keyring(path, At()).check(first)
        assert found is not None
        assert found.budget == NO_BUDGET
        assert found.models == frozenset({"m"})

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"colour": "red"}, r"keys\[0\].colour: is not a known key"),
            ({"tokens_per_day": 0}, r"keys\[0\].tokens_per_day"),
            ({"hash": "x"}, "hash: cannot be set"),
            ({"old_until": "2027-02-01"}, "old_until: cannot be set"),
            ({"expires": "soon"}, "expires: 'soon' is not a time"),
        ],
    )
    def test_nonsense_is_refused_and_nothing_changes(
        self, path: Path, first: str, options: dict[str, object], said: str
    ) -> None:
        before = path.read_text()
        with pytest.raises(ConfigError, match=said):
            change_key(path, "a", options, NOW)
        assert path.read_text() == before

    def test_who_is_not_there(self, path: Path, first: str) -> None:
        with pytest.raises(KeyUnknown, match="no key has the id 'b'"):
            change_key(path, "b", {}, NOW)
        with pytest.raises(KeyUnknown, match="no key has the id 'b'"):
            remove_key(path, "b")


class TestTenants:
    def test_a_tenant_has_a_budget_until_it_has_none(self, path: Path, first: str) -> None:
        set_tenant_budget(path, "acme", {"tokens_per_day": 5, "tokens_per_month": None})
        assert Keyring(path, At()).tenant_budget("acme") == Budget(tokens_per_day=5)  # type: ignore[arg-type]
        set_tenant_budget(path, "acme", {"tokens_per_day": None})
        assert Keyring(path, At()).tenant_budget("acme") == NO_BUDGET  # type: ignore[arg-type]


def test_where_nothing_outlives_the_process_there_are_no_budgets(path: Path, first: str) -> None:
    change_key(path, "a", {"tokens_per_month": 5}, NOW)
    with pytest.raises(ConfigError, match=r"keys\[0\]: a budget has to survive restarts: the region file needs state"):
        Keyring(path, At(), keeps_usage=False)
