from __future__ import annotations

import asyncio

import aiohttp
import pytest

from gateway.core.vocabulary import RegionName
from loadgen.demo.conversation import DemoReply, _problems, _shortened, _words
from loadgen.demo.processes import DemoFailure

US, EU = RegionName("us-east-1"), RegionName("eu-west-1")


def said(client: RegionName, engine: RegionName, answer: str = "Paris.") -> DemoReply:
    return DemoReply(client, "What is the capital of France?", answer, engine, first_token_s=0.1)


def test_it_is_a_success_only_if_somebody_was_answered_from_elsewhere() -> None:
    assert list(_problems([said(US, US), said(US, EU), said(EU, EU)], EU)) == []
    assert list(_problems([said(US, US), said(EU, EU)], EU)) == ["nothing was answered from another region"]


def test_silence_and_answers_from_the_wrong_side_are_problems() -> None:
    (silent,) = _problems([said(US, EU, " \n")], EU)
    assert "no word came back" in silent
    (wrong,) = _problems([said(EU, US)], EU)
    assert "against the residency policy" in wrong


def test_long_answers_are_cut_between_words() -> None:
    assert _shortened("short") == "short"
    assert _shortened("word " * 60).endswith("word …")


async def words_of(*lines: bytes) -> list[str]:
    stream = aiohttp.StreamReader(aiohttp.base_protocol.BaseProtocol(asyncio.get_running_loop()), limit=2**16)
    for line in lines:
        stream.feed_data(line)
    stream.feed_eof()
    return [word async for word in _words(stream)]


async def test_words_are_read_out_of_events() -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
    told = [b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % word for word in (b"The", b" capital")]
    assert await words_of(role, *told, usage, b"data: [DONE]\n\n") == ["The", " capital"]


async def test_an_error_event_ends_the_demo_with_its_message() -> None:
    with pytest.raises(DemoFailure, match="the engine failed"):
        await words_of(b'data: {"error":{"message":"the engine failed"}}\n\n')
