"""Sends a workload to OpenAI-compatible endpoints, closed loop, and measures what each client sees.

It must never mend what it measures: it does not retry, and it drops no failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
import msgspec

from gateway.clock import Clock
from gateway.core.vocabulary import ModelName, RegionName
from loadgen.report import RequestEnd, RequestRecord
from loadgen.workload import Conversation, Message, MultiTurnWorkload

REGION_HEADER = "x-nightside-region"
CHAT_PATH = "/v1/chat/completions"
_SECOND_NS = 1_000_000_000
_JSON = {"Content-Type": "application/json"}
_DONE = b"[DONE]"
_EVENT_BYTES_MAX = 2**20
_ERROR_TEXT_MAX = 200


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """The clients of one region, and where they send their requests."""

    region: RegionName
    url: str
    """Without the path: `http://127.0.0.1:8080`."""
    clients: int


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Who sends for how long. Each client has one request open at a time."""

    groups: tuple[ClientGroup, ...]
    model: ModelName
    load_s: float
    """New requests are sent this long."""
    drain_s: float
    """Running requests may take this long to finish after that."""
    ramp_s: float = 1.0
    """Clients start spread over this time."""
    request_timeout_s: float = 120.0
    pause_after_failure_s: float = 1.0
    api_key: str | None = None


@dataclass(slots=True)
class Tally:
    """Where one region's clients stand at this moment."""

    waiting: int = 0
    """Requests sent, without a first token so far."""
    streaming: int = 0
    completed: int = 0
    failed: int = 0
    answered: int = 0
    """Requests whose engine's region is known."""
    forwarded: int = 0
    """Those of them that another region answered."""
    tokens: int = 0


@dataclass(slots=True)
class _Answer:
    """What has come back of one request so far."""

    sent_ns: int
    first_token_ns: int | None = None
    served_by: RegionName | None = None
    text: list[str] = field(default_factory=list)
    tokens: int = 0
    tokens_in_time: int = 0
    usage: _Usage | None = None


class _Failure(Exception):
    """The request failed, in words for the report."""


# What is read of an answer; everything else in it is skipped.


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


class LiveRunner:
    """One run. `tallies` can be read while it runs; `records` holds every request, whole or not, once it has ended."""

    def __init__(
        self,
        plan: LoadPlan,
        workload: MultiTurnWorkload,
        *,
        clock: Clock,
        on_record: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        self.records: list[RequestRecord] = []
        self.tallies = {group.region: Tally() for group in plan.groups}
        self._plan = plan
        self._workload = workload
        self._clock = clock
        self._on_record = on_record
        self._decode = msgspec.json.Decoder(_Chunk).decode
        self._started_ns = clock.now_ns()

    @property
    def planned_load_s(self) -> float:
        return self._plan.load_s

    @property
    def load_s(self) -> float:
        """How long load has been sent so far."""
        return min(self._plan.load_s, self._elapsed_ns() / _SECOND_NS)

    async def run(self) -> None:
        """Send the load and let it drain. Cancelling it is fine: what was open is recorded as unfinished."""
        self._started_ns = self._clock.now_ns()
        timeout = aiohttp.ClientTimeout(total=self._plan.request_timeout_s)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers()) as session:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._plan.load_s + self._plan.drain_s), asyncio.TaskGroup() as clients:
                    for group in self._plan.groups:
                        for number in range(group.clients):
                            clients.create_task(self._client(session, group, number))

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._plan.api_key}"} if self._plan.api_key else {}

    async def _client(self, session: aiohttp.ClientSession, group: ClientGroup, number: int) -> None:
        """One user, until the time for new requests is over."""
        if not await self._pause(self._plan.ramp_s * number / group.clients):
            return
        for conversation in self._workload.conversations(f"{group.region}/{number}"):
            if not await self._converse(session, group, conversation):
                return

    async def _converse(self, session: aiohttp.ClientSession, group: ClientGroup, conversation: Conversation) -> bool:
        """Ask turn after turn; a failure ends the conversation. False when the time for new requests is over."""
        replies: list[str] = []
        for turn in conversation.turns:
            if not await self._pause(turn.think_s):
                return False
            reply = await self._ask(session, group, conversation.messages(replies), turn.output_tokens)
            if reply is None:
                return await self._pause(self._plan.pause_after_failure_s)
            replies.append(reply)
        return True

    async def _pause(self, pause_s: float) -> bool:
        """Wait; False when the time for new requests is over first."""
        left_s = self._plan.load_s - self._elapsed_ns() / _SECOND_NS
        await asyncio.sleep(max(0.0, min(pause_s, left_s)))
        return pause_s < left_s

    async def _ask(
        self, session: aiohttp.ClientSession, group: ClientGroup, messages: list[Message], output_tokens: int
    ) -> str | None:
        """Send one request and read its whole answer; None when that failed."""
        answer = _Answer(self._elapsed_ns())
        tally = self.tallies[group.region]
        tally.waiting += 1
        end, detail = RequestEnd.UNFINISHED, ""
        try:
            await self._exchange(session, group, self._body(messages, output_tokens), answer)
            end = RequestEnd.COMPLETED
        except _Failure as failure:
            end, detail = RequestEnd.FAILED, str(failure)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            end, detail = RequestEnd.FAILED, f"{type(error).__name__}: {error}"
        finally:
            self._close(tally, self._record(group.region, answer, end, detail))
        return "".join(answer.text) if end is RequestEnd.COMPLETED else None

    def _body(self, messages: list[Message], output_tokens: int) -> dict[str, object]:
        return {
            "model": self._plan.model,
            "messages": messages,
            "max_tokens": output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _exchange(
        self, session: aiohttp.ClientSession, group: ClientGroup, body: dict[str, object], answer: _Answer
    ) -> None:
        async with session.post(group.url + CHAT_PATH, data=msgspec.json.encode(body), headers=_JSON) as response:
            if response.status != 200:
                raise _Failure(await _refusal(response))
            served_by = response.headers.get(REGION_HEADER)
            answer.served_by = RegionName(served_by) if served_by else None
            data = b""
            async for data in _events(response.content):
                if data != _DONE:
                    self._read_chunk(group.region, answer, data)
        if data != _DONE:
            raise _Failure("the stream ended without [DONE]")
        if answer.first_token_ns is None:
            raise _Failure("the answer held no token")

    def _read_chunk(self, region: RegionName, answer: _Answer, data: bytes) -> None:
        try:
            chunk = self._decode(data)
        except msgspec.MsgspecError as error:
            raise _Failure(f"an event that is no chunk: {error}") from error
        if chunk.error is not None:
            raise _Failure(f"error event: {_shortened(msgspec.json.encode(chunk.error).decode())}")
        answer.usage = chunk.usage or answer.usage
        text = "".join(choice.delta.content or "" for choice in chunk.choices)
        if text:
            self._count_token(region, answer, text)

    def _count_token(self, region: RegionName, answer: _Answer, text: str) -> None:
        tally = self.tallies[region]
        elapsed_ns = self._elapsed_ns()
        if answer.first_token_ns is None:
            answer.first_token_ns = elapsed_ns
            tally.waiting -= 1
            tally.streaming += 1
            tally.answered += answer.served_by is not None
            tally.forwarded += answer.served_by not in (None, region)
        answer.text.append(text)
        answer.tokens += 1
        answer.tokens_in_time += elapsed_ns < self._plan.load_s * _SECOND_NS
        tally.tokens += 1

    def _record(self, region: RegionName, answer: _Answer, end: RequestEnd, detail: str) -> RequestRecord:
        usage = answer.usage or _Usage()
        cached = usage.prompt_tokens_details
        return RequestRecord(
            client_region=region,
            end=end,
            sent_ns=answer.sent_ns,
            ended_ns=self._elapsed_ns(),
            first_token_ns=answer.first_token_ns,
            served_by=answer.served_by,
            output_tokens=answer.tokens if usage.completion_tokens is None else usage.completion_tokens,
            tokens_in_time=answer.tokens_in_time,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=cached.cached_tokens if cached is not None else None,
            detail=detail,
        )

    def _close(self, tally: Tally, record: RequestRecord) -> None:
        tally.waiting -= record.first_token_ns is None
        tally.streaming -= record.first_token_ns is not None
        tally.completed += record.end is RequestEnd.COMPLETED
        tally.failed += record.end is RequestEnd.FAILED
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)

    def _elapsed_ns(self) -> int:
        return self._clock.now_ns() - self._started_ns


async def _refusal(response: aiohttp.ClientResponse) -> str:
    text = (await response.content.read(_EVENT_BYTES_MAX)).decode(errors="replace")
    return f"HTTP {response.status}: {_shortened(text)}"


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _ERROR_TEXT_MAX else text[: _ERROR_TEXT_MAX - 1] + "…"


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The payloads of `data:` lines, one per event, as the chat API sends them."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
        if len(rest) > _EVENT_BYTES_MAX:
            raise _Failure(f"an event longer than {_EVENT_BYTES_MAX} bytes")
