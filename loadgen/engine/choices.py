"""Several choices in one response: to each of several prompts, and several samples of each. They run side by side, and
end together with one usage, as vLLM's do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

from loadgen.engine.api_answers import ApiAnswer
from loadgen.engine.api_requests import GenerationRequest
from loadgen.engine.driver import TokenFeed
from loadgen.engine.vocabulary import FinishReason

Progress = Callable[[TokenFeed, int], Awaitable[tuple[int, FinishReason | None]]]
"""Waits for more tokens of a feed than those seen; gives the token count, and the finish reason once it is complete."""
Write = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class EngineChoice:
    answer: ApiAnswer
    feed: TokenFeed
    tokens: int = 0
    reason: FinishReason | None = None


def choices_of(request: GenerationRequest) -> Iterator[GenerationRequest]:
    """One request for each choice; the samples of a prompt are consecutive."""
    prompts = (request.prompt, *request.further_prompts)
    for number, prompt in enumerate(prompts):
        for sample in range(request.samples):
            index = number * request.samples + sample
            yield replace(request, prompt=prompt, further_prompts=(), index=index)


def voice_of(request: GenerationRequest) -> str:
    """Seed name for a choice's text: the model's name for the first sample, which equals the answer to a request for
    one."""
    sample = request.index % request.samples
    return f"{request.model}#{sample}" if sample else request.model


async def stream_all(choices: list[EngineChoice], write: Write, progress: Progress) -> None:
    async with asyncio.TaskGroup() as tasks:
        for choice in choices:
            tasks.create_task(_stream(choice, write, progress))
    await write(_totals(choices).ending(_tokens(choices)))


async def collect_all(choices: list[EngineChoice], progress: Progress) -> bytes:
    for choice in choices:
        while choice.reason is None:
            choice.tokens, choice.reason = await progress(choice.feed, choice.tokens)
        choice.answer.cached_tokens = choice.feed.cached_tokens
    told = [choice.answer.choice(choice.tokens, choice.reason or FinishReason.STOP) for choice in choices]
    return _totals(choices).body(told, _tokens(choices))


async def _stream(choice: EngineChoice, write: Write, progress: Progress) -> None:
    while choice.reason is None:
        sent = choice.tokens
        choice.tokens, choice.reason = await progress(choice.feed, sent)
        choice.answer.cached_tokens = choice.feed.cached_tokens
        await write(choice.answer.piece(sent, choice.tokens, choice.reason))


def _totals(choices: list[EngineChoice]) -> ApiAnswer:
    """Answer with summed prompt and cached tokens; each prompt counts once, whatever its number of samples."""
    first = choices[0].answer
    per_prompt = [choice.answer for choice in choices[:: first.request.samples]]
    return replace(
        first,
        prompt_tokens=sum(each.prompt_tokens for each in per_prompt),
        cached_tokens=sum(each.cached_tokens for each in per_prompt),
    )


def _tokens(choices: list[EngineChoice]) -> int:
    return sum(choice.tokens for choice in choices)
