"""Token usage of a request. One function computes it for the limits of keys, the metrics and the audit log alike, so
that they agree. It looks at no byte of an answer and at no clock."""

from __future__ import annotations

from gateway.core.vocabulary import RequestProfile, Word
from gateway.request.legs import RequestSummary

_BYTES_PER_TOKEN = 4
"""Bytes per token where no count is known; a cautious estimate."""
_OUTPUT_GUESS_MAX = 1024
"""Upper bound of the estimate for an answer in one piece without usage, which may hold anything, even long rows of
numbers."""


class Counted(Word):
    """Source of a token count."""

    USAGE = "usage"
    """Count reported by the engine."""
    EVENTS = "events"
    """Count of a stream's data events with content, by this gateway."""
    BYTES = "bytes"
    """Estimate from the length in bytes."""


class TokensUsed:
    """Tokens to charge for, and how they were counted."""

    __slots__ = ("output", "output_counted", "prompt", "prompt_counted")

    def __init__(self, prompt: int, prompt_counted: Counted, output: int, output_counted: Counted) -> None:
        self.prompt = prompt
        self.prompt_counted = prompt_counted
        self.output = output
        self.output_counted = output_counted

    @property
    def total(self) -> int:
        return self.prompt + self.output


_NOTHING = TokensUsed(0, Counted.USAGE, 0, Counted.USAGE)


def prompt_guess(profile: RequestProfile) -> int:
    return -(-profile.prompt_bytes // _BYTES_PER_TOKEN)


def tokens_used(profile: RequestProfile, summary: RequestSummary) -> TokensUsed:
    """Return the tokens to charge for. The prompt is charged from when a target has it, even if the client leaves;
    calls that generate nothing are free, since a stored response was charged when it was made."""
    if not summary.generates or (summary.first_token_ns is None and not summary.prompt_taken):
        return _NOTHING
    if summary.prompt_tokens is None:
        prompt, prompt_counted = prompt_guess(profile), Counted.BYTES
    else:
        prompt, prompt_counted = summary.prompt_tokens, Counted.USAGE
    if summary.is_event_stream and (summary.content_events or summary.output_tokens is None):
        output = summary.content_events + (summary.output_tokens or 0)
        return TokensUsed(prompt, prompt_counted, output, Counted.EVENTS)
    if summary.output_tokens is not None:
        return TokensUsed(prompt, prompt_counted, summary.output_tokens, Counted.USAGE)
    if not summary.answer_bytes:
        return TokensUsed(prompt, prompt_counted, 0, prompt_counted)
    output_max = _OUTPUT_GUESS_MAX if profile.output_tokens_max is None else profile.output_tokens_max
    output = min(-(-summary.answer_bytes // _BYTES_PER_TOKEN), output_max)
    return TokensUsed(prompt, prompt_counted, output, Counted.BYTES)
