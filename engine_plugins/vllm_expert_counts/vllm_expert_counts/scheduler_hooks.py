"""Hooks in vLLM's scheduler: they keep the counts of prefilled prompts as long as the requests live, and put them
beside the KV connector's answer when a request ends. They must never change the connector's own answer."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]

from vllm_expert_counts.guard import Guard
from vllm_expert_counts.model import fingerprint_of
from vllm_expert_counts.refusals import why_not
from vllm_expert_counts.wire import CARRIED, KEY, adds_up, handed_over, is_asked_for, is_asked_for_by_name

_HELD = "_nightside_expert_counts"

Answer = tuple[bool, dict[str, Any] | None]


def _look(guard: Guard, vllm_config: Any) -> None:
    """Turn the hooks off where counts cannot be had: the check is repeated here, since a worker with another model
    runner has none of the hooks, and would say nothing."""
    if reason := why_not(vllm_config):
        guard.off(reason)


def _take(scheduler: Any, model_runner_output: Any) -> None:
    carried: dict[str, NDArray[np.uint32]] | None = getattr(model_runner_output, CARRIED, None)
    if carried:
        held = scheduler.__dict__.setdefault(_HELD, {})
        held.update((each, counts) for each, counts in carried.items() if each in scheduler.requests)


def _with_counts(scheduler: Any, request: Any, asked: object, answer: Answer) -> Answer:
    counts = scheduler.__dict__.get(_HELD, {}).pop(request.request_id, None)
    delays, params = answer
    if counts is None or not (params or is_asked_for_by_name(asked)):
        return answer
    config, tokens = scheduler.vllm_config, request.num_prompt_tokens
    if not adds_up(counts, tokens, config.model_config.get_num_experts_per_tok()):
        return answer
    said = handed_over(counts, tokens, fingerprint_of(config))
    return delays, {**(params or {}), KEY: said}


def install() -> None:
    guard = Guard("scheduler")
    initialize = Scheduler.__init__
    update_from_output = Scheduler.update_from_output
    connector_finished = Scheduler._connector_finished  # noqa: SLF001 - the only place where each end passes

    @functools.wraps(initialize)
    def initialize_and_look(self: Any, *arguments: Any, **more: Any) -> None:
        initialize(self, *arguments, **more)
        guard.run(lambda: _look(guard, self.vllm_config), None)

    @functools.wraps(update_from_output)
    def take_and_update(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        guard.run(lambda: _take(self, model_runner_output), None)
        return update_from_output(self, scheduler_output, model_runner_output)

    @functools.wraps(connector_finished)
    def finish_with_counts(self: Any, request: Any) -> Answer:
        asked = request.kv_transfer_params
        is_asked = is_asked_for(asked)
        answer: Answer = connector_finished(self, request)
        return guard.run(lambda: _with_counts(self, request, asked if is_asked else None, answer), answer)

    Scheduler.__init__ = initialize_and_look
    Scheduler.update_from_output = take_and_update
    Scheduler._connector_finished = finish_with_counts  # noqa: SLF001 - see above
