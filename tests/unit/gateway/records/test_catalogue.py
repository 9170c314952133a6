from __future__ import annotations

from gateway.ground.series import Described
from gateway.records.catalogue import catalogue


def test_every_series_is_told_with_its_labels_and_its_meaning() -> None:
    told = catalogue()
    by_name = {each.name: each for each in told}
    assert len(by_name) == len(told)
    assert by_name["nightside_output_tokens_total"].labels == ("model", "ran", "counted")
    assert by_name["nightside_queue_length"] == Described(
        "nightside_queue_length", "gauge", ("model",), "Requests that wait for a target."
    )
    assert {"nightside_audit_failing", "nightside_certificate_expiry_seconds", "process_open_fds"} <= by_name.keys()
    for each in told:
        assert each.kind in {"counter", "gauge", "histogram"}, each
        assert each.words.endswith("."), each
