from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_expert_counts.refusals import why_not


def config() -> Any:
    """Config of vLLM, as far as the plug-in reads it."""
    return SimpleNamespace(
        model_config=SimpleNamespace(get_num_experts=lambda: 32, runner_type="generate"),
        use_v2_model_runner=False,
        aux_output_config=SimpleNamespace(enabled=False),
        speculative_config=None,
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            use_ubatching=False,
        ),
        cache_config=SimpleNamespace(block_size=16),
        compilation_config=SimpleNamespace(mode=0),
        device_config=SimpleNamespace(device_type="cpu"),
        kv_transfer_config=SimpleNamespace(kv_role="kv_producer"),
    )


def test_a_prefill_worker_counts_and_so_does_an_engine_without_a_connector() -> None:
    assert why_not(config()) == ""
    alone = config()
    alone.kv_transfer_config = None
    assert why_not(alone) == ""


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("model_config.get_num_experts", lambda: 0, "no experts"),
        ("use_v2_model_runner", True, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ("aux_output_config.enabled", True, "--enable-return-routed-experts"),
        ("speculative_config", object(), "speculative"),
        ("parallel_config.pipeline_parallel_size", 2, "pipeline"),
        ("model_config.runner_type", "pooling", "handed over"),
        ("parallel_config.use_ubatching", True, "microbatches"),
        ("parallel_config.decode_context_parallel_size", 2, "context parallelism"),
        ("parallel_config.prefill_context_parallel_size", 2, "context parallelism"),
        ("cache_config.block_size", None, "no KV cache"),
        ("compilation_config.mode", 3, "--enforce-eager"),
        ("kv_transfer_config.kv_role", "kv_consumer", "only decodes"),
    ],
)
def test_what_could_be_wrong_is_refused_by_name(path: str, value: object, reason: str) -> None:
    refused = config()
    *owners, name = path.split(".")
    owner = refused
    for each in owners:
        owner = getattr(owner, each)
    setattr(owner, name, value)
    assert reason in why_not(refused)


def test_an_accelerator_may_compile() -> None:
    compiled = config()
    compiled.compilation_config.mode = 3
    compiled.device_config.device_type = "cuda"
    assert why_not(compiled) == ""
