from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.engine.exposition import Exposition, Histogram, RequestMetrics, token_count_bounds
from loadgen.engine.model import EngineLoad
from loadgen.engine.presets import TINY
from loadgen.engine.vocabulary import FinishReason

LOAD = EngineLoad(
    running=4,
    waiting=12,
    arriving=1,
    kv_usage=0.25,
    blocks_held=128,
    prefix_query_tokens=1705,
    prefix_hit_tokens=832,
    preemptions=7,
    rejections=3,
    prompt_tokens=1705,
    generation_tokens=118,
    finished=4,
    iterations=99,
)
ENGINE = 'engine="0",model_name="tiny"'


@dataclass
class Page:
    """A scrape, by full series name and by family."""

    lines: list[str]
    types: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def page() -> Page:
    requests = RequestMetrics(TINY.context_tokens_max)
    requests.first_token.observe(0.05)
    requests.first_token.observe(0.07)
    requests.observe_finished(FinishReason.LENGTH, seconds=1.25, prompt_tokens=30, output_tokens=8)
    text = Exposition("tiny", TINY, created=1_795_242_205.5).render((LOAD, requests)).decode()
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    return Page(text.splitlines(), families)


@pytest.mark.parametrize(
    "line",
    [
        f"vllm:num_requests_running{{{ENGINE}}} 4.0",
        f"vllm:num_requests_waiting{{{ENGINE}}} 12.0",
        f'vllm:num_requests_waiting_by_reason{{{ENGINE},reason="capacity"}} 12.0',
        f'vllm:num_requests_waiting_by_reason{{{ENGINE},reason="deferred"}} 0.0',
        f"vllm:kv_cache_usage_perc{{{ENGINE}}} 0.25",
        f"vllm:prefix_cache_queries_total{{{ENGINE}}} 1705.0",
        f"vllm:prefix_cache_hits_total{{{ENGINE}}} 832.0",
        f"vllm:num_preemptions_total{{{ENGINE}}} 7.0",
        f"vllm:prompt_tokens_total{{{ENGINE}}} 1705.0",
        f'vllm:prompt_tokens_by_source_total{{{ENGINE},source="local_cache_hit"}} 832.0',
        f'vllm:prompt_tokens_by_source_total{{{ENGINE},source="local_compute"}} 873.0',
        f"vllm:generation_tokens_total{{{ENGINE}}} 118.0",
        f"vllm:generation_tokens_created{{{ENGINE}}} 1.7952422055e+09",
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 1.0',
        'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 0.0',
        'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 3.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.06",model_name="tiny"} 1.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.08",model_name="tiny"} 2.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 2.0',
        f"vllm:time_to_first_token_seconds_count{{{ENGINE}}} 2.0",
        'vllm:e2e_request_latency_seconds_bucket{engine="0",le="1.0",model_name="tiny"} 0.0',
        'vllm:e2e_request_latency_seconds_bucket{engine="0",le="1.5",model_name="tiny"} 1.0',
        f"vllm:e2e_request_latency_seconds_sum{{{ENGINE}}} 1.25",
        f"vllm:request_prompt_tokens_sum{{{ENGINE}}} 30.0",
    ],
)
def test_lines_are_those_of_vllm(page: Page, line: str) -> None:
    assert line in page.lines


def test_every_family_parses_with_its_type(page: Page) -> None:
    assert page.types["vllm:num_requests_running"] == "gauge"
    assert page.types["vllm:prefix_cache_hits"] == "counter"
    assert page.types["vllm:time_to_first_token_seconds"] == "histogram"
    assert "unknown" not in page.types.values()


def test_cache_config_names_block_size_and_capacity(page: Page) -> None:
    line = next(line for line in page.lines if line.startswith("vllm:cache_config_info{"))
    assert 'block_size="16"' in line
    assert 'num_gpu_blocks="512"' in line
    assert line.endswith("} 1.0")


def test_a_bucket_includes_its_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 8.0


def test_a_model_name_may_hold_quotes() -> None:
    text = Exposition('a"b', TINY, created=0.0).render((LOAD, RequestMetrics(10))).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert samples[0].labels["model_name"] == 'a"b'


def test_token_buckets_end_with_the_context() -> None:
    assert token_count_bounds(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
