from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.config.targets import Dialect
from gateway.engines.dialects import (
    DIALECTS,
    ListedModel,
    LoadReading,
    listed_models,
    read_loads,
    read_metrics,
    read_sign_of_life,
    read_slots,
)
from gateway.engines.exposition import BadProbe
from loadgen.engine.exposition import Exposition, RequestMetrics
from loadgen.engine.model import EngineModel
from loadgen.engine.presets import TINY
from tests.fakes.engine import metrics_page
from tests.fakes.engine_pages import (
    VLLM_CACHE_CONFIG,
    llama_metrics,
    llama_slots,
    model_list,
    sglang_loads,
    vllm_page,
)

SGLANG = b"""\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="Qwen/Qwen3-8B",priority="",tp_rank="0"} 12.0
sglang:num_running_reqs{engine_type="unified",model_name="Qwen/Qwen3-8B",priority="high",tp_rank="0"} 5.0
sglang:num_running_reqs{engine_type="unified",model_name="Qwen/Qwen3-8B",priority="",tp_rank="1"} 12.0
sglang:num_queue_reqs{engine_type="unified",model_name="Qwen/Qwen3-8B",priority="",tp_rank="0"} 3.0
sglang:token_usage{model_name="Qwen/Qwen3-8B"} 0.28
"""
SGLANG_RANKS = b"""\
sglang:num_running_reqs{dp_rank="1",tp_rank="2"} 7.0
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 1.0
sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 1.0
sglang:num_running_reqs{dp_rank="1",tp_rank="3"} 7.0
sglang:num_queue_reqs{dp_rank="1",tp_rank="2"} 2.0
sglang:num_queue_reqs{dp_rank="0",tp_rank="0"} 0.0
"""

GARBAGE: dict[Callable[[bytes], object], list[bytes]] = {
    read_metrics: [
        b"",
        b"<html>not found</html>",
        b"# HELP vllm:num_requests_waiting Number of requests.\n",
        b"vllm:num_requests_waiting_by_reason 3.0\n",
        b"vllm:num_requests_waiting NaN\n",
        b"vllm:num_requests_waiting +Inf\n",
        b"vllm:num_requests_waiting -1\n",
        b"vllm:num_requests_waiting 0\nvllm:num_requests_running NaN\n",
        b"vllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc NaN\n",
        b'vllm:num_requests_waiting{tp_rank="x"} 0\n',
        b'vllm:num_requests_waiting{priority="high"} 0\n',
    ],
    read_loads: [
        b"",
        b"[]",
        b"{}",
        b'{"loads":[]}',
        b'{"loads":[{"num_running_reqs":1}]}',
        b'{"loads":[{"num_running_reqs":1,"num_waiting_reqs":-1}]}',
        b'{"loads":[{"num_running_reqs":1,"num_waiting_reqs":"2"}]}',
        b'{"loads":[{"num_running_reqs":1,"num_waiting_reqs":2,"token_usage":-1}]}',
    ],
    read_slots: [b"", b"[]", b"{}", b'[{"id":0}]'],
}


@pytest.mark.parametrize(("read", "page"), [(read, page) for read, pages in GARBAGE.items() for page in pages])
def test_garbage_is_never_taken_for_idleness(read: Callable[[bytes], object], page: bytes) -> None:
    with pytest.raises(BadProbe):
        read(page)


class TestMetrics:
    def test_a_vllm_page_is_read_past_all_names_that_begin_alike(self) -> None:
        assert read_metrics(metrics_page(4, 12).encode()) == [LoadReading(4, 12, 0.25, 8192)]

    def test_ranks_are_added_up_and_the_fullest_cache_counts(self) -> None:
        assert read_metrics(vllm_page((4, 1), (3, 0)).body) == [LoadReading(7, 1, 0.2)]

    def test_each_rank_reads_its_own_series(self) -> None:
        assert read_metrics(vllm_page((4, 1), (3, 0)).body, 2) == [LoadReading(4, 1, 0.1), LoadReading(3, 0, 0.2)]

    def test_ranks_may_be_counted_from_any_number_on(self) -> None:
        """The ranks are those of one of several servers of a hybrid deployment."""
        readings = read_metrics(vllm_page(*((rank, 0) for rank in range(4)), first_rank=8).body, 4)
        assert [each.running for each in readings] == [0, 1, 2, 3]

    @pytest.mark.parametrize("ranks", [3, 5])
    def test_another_number_of_ranks_than_configured_is_said(self, ranks: int) -> None:
        with pytest.raises(BadProbe, match=f"tells of 4 ranks, and {ranks} are configured"):
            read_metrics(vllm_page(*((0, 0) for _ in range(4))).body, ranks)

    def test_a_sleeping_engine_is_unfit(self) -> None:
        (reading,) = read_metrics(vllm_page((0, 0), asleep="weights_offloaded").body)
        assert reading.unfit == "the engine sleeps (weights_offloaded)"
        (reading,) = read_metrics(vllm_page((0, 0)).body)
        assert reading.unfit == ""

    def test_sglang_s_totals_are_counted_once(self) -> None:
        assert read_metrics(SGLANG) == [LoadReading(12, 3, 0.28)]

    def test_sglang_s_ranks_are_told_apart_by_dp_rank(self) -> None:
        assert read_metrics(SGLANG_RANKS) == [LoadReading(8, 2)]
        assert read_metrics(SGLANG_RANKS, 2) == [LoadReading(1, 0), LoadReading(7, 2)]

    def test_llamacpp_has_no_labels(self) -> None:
        assert read_metrics(llama_metrics(4, 2).body) == [LoadReading(4, 2, 0.0)]

    @pytest.mark.parametrize(
        ("waiting", "running"),
        [
            (b"tgi_queue_size", b"tgi_batch_current_size"),
            (b"trtllm_num_requests_waiting", b"trtllm_num_requests_running"),
            (b"num_requests_waiting", b"num_requests_running"),
        ],
    )
    def test_other_engines_names_are_known(self, waiting: bytes, running: bytes) -> None:
        assert read_metrics(waiting + b" 5\n" + running + b" 6\n") == [LoadReading(6, 5)]

    def test_old_names_of_the_cache_are_known(self) -> None:
        (reading,) = read_metrics(b"vllm:num_requests_waiting 0\nvllm:gpu_cache_usage_perc 0.5\n")
        assert reading.kv_usage == 0.5

    def test_a_rank_that_tells_half_is_not_idle(self) -> None:
        page = b'vllm:num_requests_waiting{engine="0"} 1\nvllm:num_requests_waiting{engine="one"} 2\n'
        with pytest.raises(BadProbe):
            read_metrics(page, 2)


class TestLoads:
    def test_sglang_s_own_page_is_added_up_or_read_by_rank(self) -> None:
        page = sglang_loads((12, 3), (2, 0)).body
        assert read_loads(page) == [LoadReading(14, 3, 0.28, 366_000)]
        assert read_loads(page, 2) == [LoadReading(12, 3, 0.28, 183_000), LoadReading(2, 0, 0.28, 183_000)]

    def test_a_rank_that_is_missing_or_told_twice_is_said(self) -> None:
        load = {"num_running_reqs": 0, "num_waiting_reqs": 0}
        twice = str({"loads": [load, load]}).replace("'", '"').encode()
        for page in (sglang_loads((0, 0)).body, twice):
            with pytest.raises(BadProbe, match="2 are configured"):
                read_loads(page, 2)


class TestSlots:
    def test_an_idle_slot_means_that_nobody_waits(self) -> None:
        assert read_slots(llama_slots(True, False).body) == [LoadReading(1, 0, kv_tokens=4096, slots=2)]

    def test_behind_full_slots_somebody_may_wait(self) -> None:
        assert read_slots(llama_slots(True, True).body) == [LoadReading(2, 1, kv_tokens=4096, slots=2)]


class TestRoom:
    """Room in the KV cache."""

    def test_a_recorded_page_of_vllm_tells_it_in_labels(self) -> None:
        assert read_metrics(vllm_page((4, 12)).body + VLLM_CACHE_CONFIG) == [LoadReading(4, 12, 0.1, 4096)]

    def test_an_older_vllm_tells_blocks_and_their_size(self) -> None:
        line = VLLM_CACHE_CONFIG.replace(b'kv_cache_size_tokens="4096",', b"")
        assert _room(vllm_page((0, 0)).body + line) == 32 * 128

    def test_what_vllm_counts_itself_is_better_than_blocks_times_their_size(self) -> None:
        line = VLLM_CACHE_CONFIG.replace(b'kv_cache_size_tokens="4096"', b'kv_cache_size_tokens="1000"')
        assert _room(vllm_page((0, 0)).body + line) == 1000

    @pytest.mark.parametrize("told", [b'"None"', b'"-1"', b'"' + b"9" * 40 + b'"', b'"999999999999999"'])
    def test_nonsense_is_not_known_and_no_fault(self, told: bytes) -> None:
        line = VLLM_CACHE_CONFIG.replace(b'kv_cache_size_tokens="4096"', b"kv_cache_size_tokens=" + told)
        line = line.replace(b'num_gpu_blocks="128"', b'num_gpu_blocks="None"')
        assert _room(vllm_page((0, 0)).body + line) == 0

    def test_more_than_any_machine_has_is_nonsense(self) -> None:
        line = VLLM_CACHE_CONFIG.replace(b'kv_cache_size_tokens="4096",', b"").replace(b'"128"', b'"999999999999"')
        assert _room(vllm_page((0, 0)).body + line) == 0

    def test_a_value_that_looks_like_a_label_is_none(self) -> None:
        line = b'vllm:cache_config_info{a="{kv_cache_size_tokens=\\"7\\"",block_size="2",num_gpu_blocks="3"} 1.0\n'
        assert _room(vllm_page((0, 0)).body + line) == 6

    def test_each_rank_tells_its_own_and_together_they_have_the_sum(self) -> None:
        second = VLLM_CACHE_CONFIG.replace(b'engine="0"', b'engine="1"').replace(b'"4096"', b'"1000"')
        page = vllm_page((0, 0), (0, 0)).body + second + VLLM_CACHE_CONFIG
        assert _room(page) == 5096
        assert [each.kv_tokens for each in read_metrics(page, 2)] == [4096, 1000]

    def test_labels_without_an_end_are_read_no_further_than_known_ones_go(self) -> None:
        line = VLLM_CACHE_CONFIG.replace(b'block_size="32"', b'x="' + b"y" * 9000 + b'",block_size="32"', 1)
        assert _room(vllm_page((0, 0)).body + line) == 0

    def test_sglang_s_metrics_tell_it_once_for_all_tensor_parallel_ranks(self) -> None:
        page = SGLANG + b'sglang:max_total_num_tokens{tp_rank="0"} 9e3\nsglang:max_total_num_tokens{tp_rank="1"} 9e3\n'
        assert _room(page) == 9000

    @pytest.mark.parametrize("told", [-1, None, "many", 10**13])
    def test_what_sglang_or_llamacpp_do_not_say_plainly_is_not_known(self, told: object) -> None:
        assert read_loads(sglang_loads((1, 2), room=told).body) == [LoadReading(1, 2, 0.28)]
        assert read_slots(llama_slots(True, False, context=told).body) == [LoadReading(1, 0, slots=2)]

    @pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-1"])
    def test_a_gauge_without_a_number_of_tokens_is_not_known(self, value: bytes) -> None:
        assert _room(SGLANG + b"sglang:max_total_num_tokens " + value + b"\n") == 0

    def test_llamacpp_s_metrics_do_not_tell(self) -> None:
        assert _room(llama_metrics(4, 2).body) == 0

    def test_the_emulated_engine_tells_what_its_model_has(self) -> None:
        page = Exposition("llama", TINY, created=0.0).render((EngineModel(TINY).load(), RequestMetrics(10)))
        assert _room(page) == TINY.kv_tokens


def _room(page: bytes) -> int:
    (reading,) = read_metrics(page)
    return reading.kv_tokens


class TestModels:
    def test_base_models_come_before_their_adapters(self) -> None:
        page = model_list("qwen", "alias", adapters={"support-de": "qwen"}).body
        assert listed_models(page) == [
            ListedModel("qwen", None, "qwen"),
            ListedModel("alias", None, "alias"),
            ListedModel("support-de", "qwen", "/adapters/support-de"),
        ]

    def test_a_list_of_models_says_only_that_the_engine_lives(self) -> None:
        assert read_sign_of_life(b'{"object":"list","data":[]}') == [LoadReading()]

    @pytest.mark.parametrize("page", [b"", b"[]", b"{}", b'{"data":{}}', b'{"data":[{}]}', b'{"data":[1]}', b"\xff"])
    def test_anything_else_is_no_list_of_models(self, page: bytes) -> None:
        with pytest.raises(BadProbe):
            read_sign_of_life(page)


def test_every_dialect_has_a_question_and_none_makes_sglang_generate() -> None:
    assert set(DIALECTS) == set(Dialect)
    sglang = DIALECTS[Dialect.SGLANG]
    asked = {*(question.path for question in sglang.load), sglang.health_path, sglang.life_path}
    assert not asked & {"/health", "/health_generate"}
