from __future__ import annotations

import pytest

from gateway.app.metrics_page import Rule, alerts_on, markdown, names_in, rules_in, sample_names
from mesh.series import Described

REQUESTS = Described("nightside_requests_total", "counter", ("model", "outcome"), "Requests by how they ended.")
WAIT = Described("nightside_queue_wait_seconds", "histogram", (), "From arrival to placement.")
DOCUMENT = {
    "groups": [
        {
            "rules": [
                {"record": "nightside:requests:rate5m", "expr": "sum(rate(nightside_requests_total[5m]))"},
                {"record": "nightside:share", "expr": "nightside:requests:rate5m / 2"},
                {
                    "alert": "Half",
                    "expr": 'nightside:share > 1 or vector(1) == 2 # "a|b"',
                    "annotations": {"summary": "!"},
                },
                {"alert": "Slow", "expr": "rate(nightside_queue_wait_seconds_bucket[5m]) > 1"},
            ]
        }
    ]
}


def test_an_alert_counts_for_what_its_recordings_are_made_of() -> None:
    rules = rules_in(DOCUMENT)
    assert alerts_on("nightside_requests_total", rules) == ["Half"]
    assert alerts_on("nightside_queue_wait_seconds", rules) == ["Slow"]
    assert alerts_on("nightside_requests", rules) == [], "a name is not part of another"
    assert rules[2] == Rule("Half", 'nightside:share > 1 or vector(1) == 2 # "a|b"', True, "!")


def test_names_are_those_of_the_series_that_histograms_are_made_of() -> None:
    assert names_in("rate(nightside_a_bucket[1m]) + nightside_b_sum / process_c") == {
        "nightside_a",
        "nightside_b",
        "process_c",
    }
    assert sample_names(WAIT) == tuple(
        f"nightside_queue_wait_seconds_{suffix}" for suffix in ("bucket", "sum", "count")
    )
    assert sample_names(REQUESTS) == (REQUESTS.name,)


def test_a_series_has_a_row_and_its_labels_are_explained() -> None:
    page = markdown([REQUESTS, WAIT], rules_in(DOCUMENT))
    assert (
        "| `nightside_requests_total` | counter | `model`, `outcome` | Requests by how they ended. |"
        " [Half](../how_to/alerts.md#half) |\n"
    ) in page
    assert "| `outcome` | Outcome of the request. | `completed`, " in page
    assert "| `nightside:share` | `nightside:requests:rate5m / 2` |" in page


def test_a_label_that_nobody_explains_is_no_page() -> None:
    with pytest.raises(KeyError, match="colour"):
        markdown([Described("nightside_x", "gauge", ("colour",), "?")], [])
