from __future__ import annotations

from gateway.core.vocabulary import TenantName
from gateway.records.tenant_labels import OTHER, TENANTS_MAX, TenantLabels


def test_the_first_to_come_are_named_and_stay_so() -> None:
    labels = TenantLabels()
    names = [TenantName(f"t{number}") for number in range(TENANTS_MAX + 1)]
    assert [labels.of(name, may_be_named=True) for name in names] == [*names[:-1], OTHER]
    assert labels.of(names[0], may_be_named=True) == names[0]


def test_whom_logs_may_not_name_uses_up_no_label() -> None:
    labels = TenantLabels()
    for number in range(TENANTS_MAX + 1):
        assert labels.of(TenantName(f"t{number}"), may_be_named=False) == OTHER
    assert labels.of(TenantName("later"), may_be_named=True) == "later"
