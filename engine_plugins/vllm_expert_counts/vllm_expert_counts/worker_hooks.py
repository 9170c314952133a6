"""Hooks in a worker of vLLM: they listen to the gates' picks by vLLM's own capture of routed experts, which is on
whether or not vLLM returns them, and count a step once it has been launched. They must never raise into a step, nor
wait for one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch  # type: ignore[import-not-found]
from vllm.distributed import get_tensor_model_parallel_rank  # type: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe.layer import MoERunner  # type: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe.routed_experts_capturer import (  # type: ignore[import-not-found]
    RoutedExpertsCapturer,
    RoutedExpertsCaptureSource,
    bind_routed_experts_capturer,
)
from vllm.v1.kv_cache_interface import is_full_attention_spec  # type: ignore[import-not-found]
from vllm.v1.worker.gpu_model_runner import (  # type: ignore[import-not-found]
    AsyncGPUModelRunnerOutput,
    GPUModelRunner,
)

from vllm_expert_counts import logger
from vllm_expert_counts.counting import Counter, Scheduled
from vllm_expert_counts.guard import Guard
from vllm_expert_counts.ledger import Ledger
from vllm_expert_counts.model import fingerprint_of
from vllm_expert_counts.options import read_options
from vllm_expert_counts.recording import Recorder, file_of
from vllm_expert_counts.refusals import why_not
from vllm_expert_counts.rows import HostRows, Rows, Total
from vllm_expert_counts.wire import CARRIED, is_asked_for, label_of

_HELD = "_nightside_expert_counts"
"""Attribute: on a model runner, its `Worker`; on a step's output, counts that are not read yet."""


class Capture(RoutedExpertsCapturer):  # type: ignore[misc]
    """Capture of vLLM, whose failures are kept from the layer that it listens to."""

    def __init__(self, guard: Guard, max_num_batched_tokens: int, vllm_config: Any) -> None:
        super().__init__(max_num_batched_tokens, vllm_config)
        self._guard = guard

    def capture(self, layer_id: int, topk_ids: torch.Tensor) -> None:
        self._guard.run(lambda: super(Capture, self).capture(layer_id, topk_ids), None)


@dataclass(slots=True)
class Worker:
    """State kept beside one model runner."""

    guard: Guard
    capture: Capture
    counter: Counter
    recorder: Recorder | None
    group: int
    """Index of the KV cache group whose blocks are counted."""
    layers: torch.Tensor
    """Layers with experts."""
    read: dict[str, Total]
    """Counts of the prompts that the step under way has prefilled to their end, by request."""

    def step(self, runner: Any, scheduler_output: Any) -> None:
        self.counter.end(scheduler_output.finished_req_ids)
        if self.recorder is not None:
            self.recorder.end(scheduler_output.finished_req_ids)
        for copy in scheduler_output.kv_cache_block_copies or ():
            self.counter.copy(copy.src_block_id, copy.dst_block_id)
        tokens = scheduler_output.total_num_scheduled_tokens
        if not tokens:
            return
        is_recording = self.recorder is not None and self.recorder.is_on
        batch = list(self._batch(runner, scheduler_output, is_wanted=is_recording))
        assert sum(each.tokens for each in batch) == tokens, "a step has other tokens than its requests"
        picks = self.capture.device_buffer[:tokens].index_select(1, self.layers)
        if picks.device.type == "cpu":
            picks = picks.numpy()
        self.read = self.counter.step(batch, picks)
        if is_recording and self.recorder is not None:
            labels = {each: label_of(_extra(runner.requests[each].sampling_params)) for each in self.read}
            self.recorder.step(batch, picks, self.read, labels)

    def _batch(self, runner: Any, scheduler_output: Any, *, is_wanted: bool) -> Iterator[Scheduled]:
        cached = scheduler_output.scheduled_cached_reqs
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        starts |= {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        for request_id in runner.input_batch.req_ids:
            request = runner.requests[request_id]
            yield Scheduled(
                request_id,
                starts[request_id],
                scheduler_output.num_scheduled_tokens[request_id],
                request.num_prompt_tokens,
                request.block_ids[self.group],
                is_wanted or _is_asked_for(request.sampling_params),
            )


def _layers_with_experts(model: Any) -> list[int]:
    """Layers to which vLLM's own capture listens."""
    sources = (MoERunner, RoutedExpertsCaptureSource)
    return sorted({module.layer_id for module in model.modules() if isinstance(module, sources)})


def _set_up(runner: Any, guard: Guard, kv_cache_config: Any) -> Worker | None:
    config = runner.vllm_config
    options = read_options(config.additional_config)
    if reason := why_not(config):
        guard.off(reason)
        return None
    layers = _layers_with_experts(runner.model)
    capture = Capture(guard, runner.max_num_tokens, config)
    bind_routed_experts_capturer(runner.model, capture)
    if get_tensor_model_parallel_rank() != 0:
        return None
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    group = next((number for number, spec in enumerate(specs) if is_full_attention_spec(spec)), None)
    if group is None:
        guard.off("no KV cache of this model is one of full attention")
        return None
    experts = config.model_config.get_num_experts()
    rows = _rows(kv_cache_config.num_blocks, specs[group].block_size, len(layers), experts, runner.device)
    counter = Counter(Ledger(kv_cache_config.num_blocks, specs[group].block_size), rows)
    recorder = None
    if options.record is not None:
        file = file_of(
            options.record, config.parallel_config.data_parallel_size, config.parallel_config.data_parallel_rank
        )
        recorder = Recorder(rows, file, options.record_lines_max, fingerprint_of(config))
    logger.info(
        "expert counts are on: %d layers of %d experts, %d blocks, %.2f MB%s",
        len(layers),
        experts,
        kv_cache_config.num_blocks,
        rows.nbytes / 1e6,
        f", recorded in {options.record}" if options.record else "",
    )
    return Worker(guard, capture, counter, recorder, group, torch.tensor(layers, device=runner.device), {})


def _rows(blocks: int, block_tokens: int, layers: int, experts: int, device: torch.device) -> HostRows | Any:
    if device.type == "cpu":
        return HostRows(blocks, block_tokens, layers, experts)
    from vllm_expert_counts.device_rows import DeviceRows  # noqa: PLC0415 - of no use on a host

    rows: Rows = DeviceRows(blocks, block_tokens, layers, experts, device)
    return rows


def _is_asked_for(sampling_params: Any) -> bool:
    return is_asked_for(_extra(sampling_params).get("kv_transfer_params"))


def _extra(sampling_params: Any) -> dict[str, Any]:
    extra: dict[str, Any] = getattr(sampling_params, "extra_args", None) or {}
    return extra


def _worker_of(runner: Any) -> Worker | None:
    worker: Worker | None = getattr(runner, _HELD, None)
    return worker


def _attach(worker: Worker, output: Any) -> None:
    """Attach the counts to the output for the scheduler. An output that is still being computed gets its counts when it
    is read."""
    if worker.read and output is not None:
        setattr(output, _HELD, worker.read)
        worker.read = {}
        if not isinstance(output, AsyncGPUModelRunnerOutput):
            _resolve(output, output)


def _resolve(pending: Any, output: Any) -> None:
    read: dict[str, Total] | None = pending.__dict__.pop(_HELD, None)
    if read:
        setattr(output, CARRIED, {request_id: total() for request_id, total in read.items()})


def install() -> None:
    guard = Guard("worker")

    def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, functools.wraps(original)(make(original)))

    def initialize_kv_cache(original: Any) -> Any:
        def hooked(self: Any, kv_cache_config: Any, is_profiling: bool = False, **more: Any) -> Any:
            result = original(self, kv_cache_config, is_profiling, **more)
            if not is_profiling:
                setattr(self, _HELD, guard.run(lambda: _set_up(self, guard, self.kv_cache_config), None))
            return result

        return hooked

    def execute_model(original: Any) -> Any:
        def hooked(self: Any, scheduler_output: Any, *arguments: Any, **more: Any) -> Any:
            result = original(self, scheduler_output, *arguments, **more)
            if (worker := _worker_of(self)) is not None:
                guard.run(lambda: worker.step(self, scheduler_output), None)
            return result

        return hooked

    def sample_tokens(original: Any) -> Any:
        def hooked(self: Any, *arguments: Any, **more: Any) -> Any:
            result = original(self, *arguments, **more)
            if (worker := _worker_of(self)) is not None:
                guard.run(lambda: _attach(worker, result), None)
            return result

        return hooked

    def get_output(original: Any) -> Any:
        def hooked(self: Any) -> Any:
            result = original(self)
            if _HELD in self.__dict__:
                guard.run(lambda: _resolve(self, result), None)
            return result

        return hooked

    wrap(GPUModelRunner, "initialize_kv_cache", initialize_kv_cache)
    wrap(GPUModelRunner, "execute_model", execute_model)
    wrap(GPUModelRunner, "sample_tokens", sample_tokens)
    wrap(AsyncGPUModelRunnerOutput, "get_output", get_output)
