"""Measures of a load, by which it can be held beside the paper's: lengths, their spread, and what workers hold. It
plays nothing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from loadgen.figures import Figures
from loadgen.studies.balanceroute.capacity import held_tokens, kv_tokens_of
from loadgen.studies.balanceroute.loads import PrefilledRequest
from loadgen.studies.protocols.plan import BATCHES, LIMITED


def scale_of(asks: Sequence[PrefilledRequest]) -> Figures:
    """Measures of the requests that are played. `rooms`: tokens of a KV cache with a limit, by batch."""
    prompts = [each.prompt_tokens for each in asks]
    answers = [each.output_tokens for each in asks]
    held = held_tokens(asks)
    return {
        "requests": len(asks),
        "prompt_mean": round(fmean(prompts)),
        "prompt_variation": round(pstdev(prompts) / fmean(prompts), 2),
        "answer_mean": round(fmean(answers)),
        "answer_variation": round(pstdev(answers) / fmean(answers), 2),
        "held_mean": round(held),
        "prompt_share": round(fmean(prompts, weights=answers) / held, 3),
        "longest": max(prompt + answer for prompt, answer in zip(prompts, answers, strict=True)),
        "rooms": {str(batch): kv_tokens_of(asks, batch, LIMITED) for batch in BATCHES},
    }
