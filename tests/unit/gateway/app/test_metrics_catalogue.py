from __future__ import annotations

import re
import runpy
from pathlib import Path

from controller.metrics import ControllerMetrics
from gateway.app.metrics_catalogue import catalogue
from gateway.app.metrics_page import LABELS, LABELS_OF
from gateway.core.kernel.description import gauges_of
from gateway.records.metrics import GatewayMetrics
from mesh.series import Described, described
from tests.support.core import EU, desk, peer_spec
from tests.support.followed import Followed


def test_every_series_is_told_with_its_labels_and_its_meaning() -> None:
    told = catalogue()
    by_name = {each.name: each for each in told}
    assert len(by_name) == len(told)
    assert by_name["nightside_output_tokens_total"].labels == ("model", "ran", "counted")
    assert by_name["nightside_queue_length"] == Described(
        "nightside_queue_length", "gauge", ("model",), "Requests waiting for a target, by model."
    )
    assert {"nightside_audit_failing", "nightside_certificate_expiry_seconds", "process_open_fds"} <= by_name.keys()
    for each in told:
        assert each.kind in {"counter", "gauge", "histogram"}, each
        assert each.words.endswith("."), each


PROSE = runpy.run_path(str(Path(__file__).parents[4] / ".ci/prose"))


def faults_of(words: str) -> list[str]:
    """First word that is no noun or verb, and words that hide which machine is meant."""
    found = [word.lower() for word in re.findall(r"[A-Za-z']+", words)]
    first = [word for word in found[:1] if words.lower().startswith(word) and word in PROSE["FIRST_WORDS"]]
    return first + [word for word in found if word in PROSE["WORDS"] | {"ours", "who"}]


def test_meanings_of_series_and_labels_are_plain_words() -> None:
    texts = [each.meaning for each in [*LABELS.values(), *LABELS_OF.values()]]
    texts += [each.words for each in [*catalogue(), *ControllerMetrics().catalogue()]]
    assert faults_of("Whose request; `other` if nobody serves it.") == ["whose", "nobody"]
    assert {text: faults_of(text) for text in texts if faults_of(text) or not text.endswith(".")} == {}


def test_traffic_brings_no_name_and_no_label_that_is_not_in_it() -> None:
    one = desk(peers=(peer_spec("eu-1", EU),))
    followed = Followed(one)
    metrics = GatewayMetrics(lambda: gauges_of(one.core, one.now_ns), one.core, followed.requests)
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
