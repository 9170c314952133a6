"""Several answers to one request: to each of several prompts, and several to each. They run beside each other, and end
together with one usage, as vLLM's do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

from loadgen.engine.api_answers import Answer
from loadgen.engine.api_requests import GenerationRequest
from loadgen.engine.driver import TokenFeed
from loadgen.engine.vocabulary import FinishReason

Progress = Callable[[TokenFeed, int], Awaitable[tuple[int, FinishReason | None]]]
"""How many tokens of a feed there are beyond those seen, and the reason if they are all."""
Write = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class Choice:
    answer: Answer
    feed: TokenFeed
    tokens: int = 0
    reason: FinishReason | None = None


def choices_of(request: GenerationRequest) -> Iterator[GenerationRequest]:
    """One for each choice: the samples of a prompt stand together."""
    prompts = (request.prompt, *request.further_prompts)
    for number, prompt in enumerate(prompts):
        for sample in range(request.samples):
            index = number * request.samples + sample
            yield replace(request, prompt=prompt, further_prompts=(), index=index)


def voice_of(request: GenerationRequest) -> str:
    """Whose words they are: the first sample's are the model's own, which a request for one gets as well."""
    sample = request.index % request.samples
    return f"{request.model}#{sample}" if sample else request.model


async def stream_all(choices: list[Choice], write: Write, progress: Progress) -> None:
    async with asyncio.TaskGroup() as tasks:
        for choice in choices:
            tasks.create_task(_stream(choice, write, progress))
    await write(_totals(choices).ending(_tokens(choices)))


async def collect_all(choices: list[Choice], progress: Progress) -> bytes:
    for choice in choices:
        while choice.reason is None:
            choice.tokens, choice.reason = await progress(choice.feed, choice.tokens)
        choice.answer.cached_tokens = choice.feed.cached_tokens
    told = [choice.answer.choice(choice.tokens, choice.reason or FinishReason.STOP) for choice in choices]
    return _totals(choices).body(told, _tokens(choices))


async def _stream(choice: Choice, write: Write, progress: Progress) -> None:
    while choice.reason is None:
        sent = choice.tokens
        choice.tokens, choice.reason = await progress(choice.feed, sent)
        choice.answer.cached_tokens = choice.feed.cached_tokens
        await write(choice.answer.piece(sent, choice.tokens, choice.reason))


def _totals(choices: list[Choice]) -> Answer:
    """Each prompt counts once, whatever was said to it."""
    first = choices[0].answer
    per_prompt = [choice.answer for choice in choices[:: first.request.samples]]
    return replace(
        first,
        prompt_tokens=sum(each.prompt_tokens for each in per_prompt),
        cached_tokens=sum(each.cached_tokens for each in per_prompt),
    )


def _tokens(choices: list[Choice]) -> int:
    return sum(choice.tokens for choice in choices)
