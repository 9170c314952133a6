from __future__ import annotations

from gateway.app.metrics_catalogue import catalogue
from gateway.core.kernel.description import gauges_of
from gateway.records.metrics import Metrics
from mesh.series import Described, described
from tests.support.core import EU, desk, peer_spec
from tests.support.followed import Followed


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


def test_traffic_brings_no_name_and_no_label_that_is_not_in_it() -> None:
    one = desk(peers=(peer_spec("eu-1", EU),))
    followed = Followed(one)
    metrics = Metrics(lambda: gauges_of(one.core, one.now_ns), one.core, followed.requests)
    followed.finished.hand_to(metrics.on_finished)
    followed.finished.hand_to(metrics.usage.on_finished)
    followed.watch([metrics])
    for ask in (followed.ask, followed.forward):
        ask("a")
        followed.first_token("a")
        followed.end("a")
        followed.finish("a", first_token_ns=1, is_event_stream=True, prompt_tokens=9, output_tokens=9, cached_tokens=1)
    metrics.refused("invalid_api_key", None)
    metrics.follow_certificate("clients", float)
    labels_of = {each.name: set(each.labels) for each in catalogue()}
    seen = set()
    for family in metrics.registry.collect():
        told = described(family)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == labels_of[told.name], sample
            seen.add(told.name)
    assert {"nightside_output_tokens_total", "nightside_forwards_output_token_seconds"} <= seen
