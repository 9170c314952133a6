from __future__ import annotations

import random

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gateway.records.usage_metrics import LENGTHS
from loadgen.planner.histogram import PROMPTS, TOTALS, HistogramError, lengths_from_pages
from loadgen.planner.lengths import RequestShape, recorded
from mesh.series import Distribution


def page_of(shapes: dict[str, list[RequestShape]]) -> str:
    registry = CollectorRegistry()
    families = {name: Distribution(name, "words", LENGTHS, ("model",)) for name in (PROMPTS, TOTALS)}
    for model, asked in shapes.items():
        for shape in asked:
            families[PROMPTS].observe(shape.prompt_tokens, model)
            families[TOTALS].observe(shape.total_tokens, model)
    for family in families.values():
        registry.register(family)
    return generate_latest(registry).decode()


def chat(count: int, seed: int = 1) -> list[RequestShape]:
    rng = random.Random(seed)
    return [
        RequestShape(max(1, round(rng.lognormvariate(6.5, 1.2))), max(1, round(rng.lognormvariate(5, 1))))
        for _ in range(count)
    ]


def test_a_gateway_s_names_are_these() -> None:
    assert (PROMPTS, TOTALS) == ("nightside_request_prompt_tokens", "nightside_request_total_tokens")


def test_lengths_come_back_nearly_as_they_were() -> None:
    shapes = chat(3_000)
    counted, whole = lengths_from_pages([page_of({"m": shapes})]), recorded(shapes)
    assert counted.requests == 3_000
    for threshold in (512, 1_024, 2_048, 4_096):
        assert counted.lengths.share_up_to(threshold) == pytest.approx(whole.share_up_to(threshold), abs=0.01)
    for of in (lambda each: each.prompt_tokens, lambda each: each.output_tokens):
        assert counted.lengths.mean(of) == pytest.approx(whole.mean(of), rel=0.05)


def test_gateways_are_counted_together() -> None:
    one, other = chat(500, seed=1), chat(700, seed=2)
    counted = lengths_from_pages([page_of({"m": one}), page_of({"m": other})])
    assert counted.requests == 1_200
    alone = lengths_from_pages([page_of({"m": one + other})])
    assert counted.lengths.quantile(0.9) == alone.lengths.quantile(0.9)


def test_one_model_is_taken_and_several_are_asked_about() -> None:
    page = page_of({"a": chat(50), "b": chat(80)})
    assert lengths_from_pages([page], "b").requests == 80
    with pytest.raises(HistogramError, match="several models are counted, name one with --model: a, b"):
        lengths_from_pages([page])
    with pytest.raises(HistogramError, match="no request of c is counted; there are: a, b"):
        lengths_from_pages([page], "c")


@pytest.mark.parametrize("page", ["", "# nothing here\nup 1\n"])
def test_a_page_without_them_is_refused(page: str) -> None:
    with pytest.raises(HistogramError, match="no request is counted"):
        lengths_from_pages([page])


def test_what_is_no_metrics_page_is_refused() -> None:
    with pytest.raises(HistogramError, match="no metrics page"):
        lengths_from_pages(["<html>{{{</html> x y z"])


def test_what_is_beyond_the_last_bound_is_there_all_the_same() -> None:
    counted = lengths_from_pages([page_of({"m": [RequestShape(2_000_000, 10)] * 10})])
    assert counted.lengths.quantile(0.5) > LENGTHS[-1]
