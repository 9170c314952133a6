from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.records.budget_metrics import BudgetLevels


def test_what_was_heard_of_budgets() -> None:
    registry = CollectorRegistry()
    registry.register(BudgetLevels(lambda: 3, lambda: 2, lambda: True))
    assert registry.get_sample_value("nightside_budgets_heard") == 3
    assert registry.get_sample_value("nightside_budgets_not_heard_total") == 2
    assert registry.get_sample_value("nightside_usage_failing") == 1
