"""Conditions in which counts could be wrong, or counting would change the engine: the plug-in then stays off, and says
why. The module reads vLLM's configuration by its names and imports nothing of vLLM."""

from __future__ import annotations

from typing import Any


def why_not(config: Any) -> str:
    """Return the reason why counts cannot be had; empty where they can."""
    parallel, cache, compilation = config.parallel_config, config.cache_config, config.compilation_config
    transfer = config.kv_transfer_config
    only_decodes = transfer is not None and transfer.kv_role == "kv_consumer"
    spreads_blocks = parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1
    is_compiled = compilation.mode not in (None, 0)
    reasons = [
        (not config.model_config.get_num_experts(), "this model has no experts"),
        (config.model_config.runner_type != "generate", "this engine answers nothing that is handed over"),
        (config.use_v2_model_runner, "they need vLLM's first model runner: set VLLM_USE_V2_MODEL_RUNNER=0"),
        (config.aux_output_config.enabled, "vLLM itself listens to the gates (--enable-return-routed-experts)"),
        (config.speculative_config is not None, "with speculative decoding a token's place may be written twice"),
        (parallel.pipeline_parallel_size > 1, "with pipeline parallelism no worker sees all layers"),
        (parallel.use_ubatching, "with microbatches the capture of picks mixes up their tokens"),
        (spreads_blocks, "with context parallelism a prompt's blocks are spread over workers"),
        (not cache.block_size, "this model has no KV cache"),
        (
            config.device_config.device_type == "cpu" and is_compiled,
            "on a CPU gates are compiled with the model: add --enforce-eager",
        ),
        (only_decodes, "this engine only decodes: it reads no prompts, hands nothing over, and has nothing to record"),
    ]
    return next((reason for is_so, reason in reasons if is_so), "")
