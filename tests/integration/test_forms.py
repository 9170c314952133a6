"""Structured answers, several choices for one request, and several prompts in one, as OpenAI's SDK requests them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from pydantic import BaseModel

from tests.support.core import MODEL
from tests.support.served import HELLO, HELLO_ANSWERED, Served


class Trip(BaseModel):
    city: str
    days: int
    stops: list[str]


@pytest.fixture
async def client(up: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=up.openai_url, api_key="client", max_retries=0) as made:
        yield made


async def test_an_answer_is_parsed_into_what_it_was_asked_to_be(client: openai.AsyncOpenAI) -> None:
    told = await client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Trip, max_tokens=100)
    assert isinstance(told.choices[0].message.parsed, Trip)
    response = await client.responses.parse(model=MODEL, input="hello", text_format=Trip, max_output_tokens=100)
    assert isinstance(response.output_parsed, Trip)


async def test_several_answers_to_one_chat(client: openai.AsyncOpenAI) -> None:
    told = await client.chat.completions.create(model=MODEL, messages=HELLO, n=3, max_tokens=6)
    said = [choice.message.content for choice in told.choices]
    assert (said[0], len(set(said))) == (HELLO_ANSWERED, 3)
    assert told.usage is not None
    assert told.usage.completion_tokens == 18
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, n=3, max_tokens=6, stream=True)
    streamed = ["", "", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == said


async def test_several_prompts_in_one_completion(client: openai.AsyncOpenAI) -> None:
    alone = [await client.completions.create(model=MODEL, prompt=text, max_tokens=4) for text in ("one", "two")]
    together = await client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=4)
    assert [choice.text for choice in together.choices] == [each.choices[0].text for each in alone]
