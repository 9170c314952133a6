"""Fields of a load report whose change is news."""

from __future__ import annotations

import pytest
from msgspec.structs import fields, replace

from gateway.core.vocabulary import (
    ControlVersion,
    GatewayId,
    LoadReport,
    ModelCapacity,
    ModelQueue,
    PoolName,
    TenantName,
    TenantUse,
)
from tests.support.core import EU, MODEL, US

REPORT = LoadReport(GatewayId("us-1"), US, 1, accepting=True, assignment_version=1, policy_digest="one")
OTHER = LoadReport(
    GatewayId("eu-1"),
    EU,
    2,
    accepting=False,
    assignment_version=2,
    policy_digest="two",
    capacities=(ModelCapacity(MODEL, PoolName("default"), EU, 2, 1),),
    queues=(ModelQueue(MODEL, 1),),
    control=ControlVersion(1, 2),
    uses=(TenantUse(TenantName("acme"), 1),),
)


@pytest.mark.parametrize("name", [each.name for each in fields(LoadReport) if each.name != "sequence"])
def test_whatever_a_report_says_anew_is_news(name: str) -> None:
    said, other = getattr(REPORT, name), getattr(OTHER, name)
    assert said != other, "give the other report a word of its own"
    assert replace(REPORT, **{name: other}).is_news_after(REPORT, share=0.5)


def test_a_report_s_number_is_no_news() -> None:
    assert not replace(REPORT, sequence=2).is_news_after(REPORT, share=0.0)
