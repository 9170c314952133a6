"""In vLLM's scheduler: keeps the counts of prompts that were read, as long as their requests live, and puts them beside
what the KV connector answers when a request ends. It must never change the connector's own words.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]

from vllm_expert_counts.guard import Guard
from vllm_expert_counts.model import fingerprint_of
from vllm_expert_counts.wire import CARRIED, KEY, handed_over, is_asked_for, is_asked_for_by_name

_HELD = "_nightside_expert_counts"

Answer = tuple[bool, dict[str, Any] | None]


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
    said = handed_over(counts, request.num_prompt_tokens, fingerprint_of(scheduler.vllm_config))
    return delays, {**(params or {}), KEY: said}


def install() -> None:
    guard = Guard("scheduler")
    update_from_output = Scheduler.update_from_output
    connector_finished = Scheduler._connector_finished  # noqa: SLF001 - the only place where each end passes

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

    Scheduler.update_from_output = take_and_update
    Scheduler._connector_finished = finish_with_counts  # noqa: SLF001 - see above
