from __future__ import annotations

import pytest

from gateway.config import Dialect
from gateway.engines.dialects import PROBES, BadProbe, Reading, read_metrics, read_models
from tests.fakes.engine import metrics_page

SGLANG = b"""\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="Qwen/Qwen3-8B",priority="",tp_rank="0"} 12.0
sglang:num_running_reqs{engine_type="unified",model_name="Qwen/Qwen3-8B",priority="high",tp_rank="0"} 5.0
sglang:num_running_reqs{engine_type="unified",model_name="Qwen/Qwen3-8B",priority="",tp_rank="1"} 12.0
sglang:num_queue_reqs{engine_type="unified",model_name="Qwen/Qwen3-8B",priority="",tp_rank="0"} 3.0
sglang:token_usage{model_name="Qwen/Qwen3-8B"} 0.28
"""
LLAMACPP = b"""\
# HELP llamacpp:requests_processing Number of requests processing.
llamacpp:requests_processing 4
llamacpp:requests_deferred 2
"""


def test_a_vllm_page_is_read_past_all_names_that_begin_alike() -> None:
    assert read_metrics(metrics_page(4, 12).encode()) == Reading(4, 12, 0.25)


def test_ranks_are_added_up_and_the_fullest_cache_counts() -> None:
    page = b"""
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.1
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.9"""
    assert read_metrics(page) == Reading(7, 1, 0.9)


def test_sglang_s_totals_are_counted_once() -> None:
    assert read_metrics(SGLANG) == Reading(12, 3, 0.28)


def test_llamacpp_has_no_labels() -> None:
    assert read_metrics(LLAMACPP) == Reading(4, 2, 0.0)


@pytest.mark.parametrize(
    ("waiting", "running"),
    [
        (b"tgi_queue_size", b"tgi_batch_current_size"),
        (b"trtllm_num_requests_waiting", b"trtllm_num_requests_running"),
        (b"num_requests_waiting", b"num_requests_running"),
    ],
)
def test_other_engines_names_are_known(waiting: bytes, running: bytes) -> None:
    assert read_metrics(waiting + b" 5\n" + running + b" 6\n") == Reading(6, 5)


def test_labels_are_a_map_whatever_their_values_hold() -> None:
    line = rb'vllm:num_requests_waiting{model_name="a \"} 99 b",engine="0"} 3.0 1795242205878' + b"\r\n"
    assert read_metrics(line).waiting == 3


def test_old_names_of_the_cache_are_known() -> None:
    assert read_metrics(b"vllm:num_requests_waiting 0\nvllm:gpu_cache_usage_perc 0.5\n").kv_usage == 0.5


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>not found</html>",
        b"# HELP vllm:num_requests_waiting Number of requests.\n",
        b"vllm:num_requests_waiting_by_reason 3.0\n",
        b"vllm:num_requests_waiting{engine=0} 3.0\n",
        b'vllm:num_requests_waiting{engine="0" 3.0\n',
        b"vllm:num_requests_waiting \n",
        b"vllm:num_requests_waiting many\n",
        b"vllm:num_requests_waiting NaN\n",
        b"vllm:num_requests_waiting +Inf\n",
        b"vllm:num_requests_waiting -1\n",
        b"vllm:num_requests_waiting 0\nvllm:num_requests_running NaN\n",
        b"vllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc NaN\n",
    ],
)
def test_garbage_is_never_taken_for_idleness(page: bytes) -> None:
    with pytest.raises(BadProbe):
        read_metrics(page)


def test_a_list_of_models_says_only_that_the_engine_lives() -> None:
    assert read_models(b'{"object":"list","data":[]}') == Reading()


@pytest.mark.parametrize("page", [b"", b"[]", b"{}", b'{"data":{}}', b"\xff"])
def test_anything_else_is_no_list_of_models(page: bytes) -> None:
    with pytest.raises(BadProbe):
        read_models(page)


def test_every_dialect_has_a_probe() -> None:
    assert set(PROBES) == set(Dialect)
