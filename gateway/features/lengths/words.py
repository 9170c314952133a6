"""Words on the pool that a request's length led to, in explanations."""

from __future__ import annotations

from gateway.core.vocabulary import PoolStep
from gateway.features.words import Words
from gateway.records.decisions import ExplainedPlacement, ExplainedPool


class PoolWords(Words):
    """Sentence on the pool that was chosen."""

    def sentence(self, placement: ExplainedPlacement, /) -> str:
        return _in_pool(placement.pool) if placement.pool else ""


def _in_pool(choice: ExplainedPool) -> str:
    """Sentence on the pool that was chosen, and why."""
    answer = "as others come to" if choice.is_soft else "asked for"
    total = choice.prompt_tokens + choice.output_tokens
    parts = f"{choice.prompt_tokens} of prompt, {choice.output_tokens} {answer}"
    budget = f"It was taken to come to {total} tokens ({parts})"
    refused = f", after an engine that takes {choice.refused_tokens} had refused it" if choice.refused_tokens else ""
    meant = f"which pool {choice.preferred} is meant for"
    steps: dict[str, str] = {
        PoolStep.PREFERRED: f"which pool {choice.pool} is meant for",
        PoolStep.SPILLED: f"{meant}: that was full, and no request waited for {choice.pool}",
        PoolStep.STOOD_IN: f"{meant}: no engine there answered, and {choice.pool} takes it",
        PoolStep.REMOTE: "and goes into the pool there that is meant for so many",
    }
    return f"{budget}{refused}, {steps.get(choice.step, f'which came to pool {choice.pool} as {choice.step}')}."
