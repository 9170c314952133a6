"""Holds one stream to one of the controllers: announces this gateway and reports its state, and passes on what the
controller sends.

A controller that cannot be reached, falls silent, sends invalid messages or is no controller is left for the next one,
after a pause that grows. The module decides nothing about what it receives, and no other part of the gateway waits for
it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from typing import Never, Protocol

import grpc
import grpc.aio
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from gateway.config.sections import ControlConfig
from gateway.control.histories import HistoryOffer, HistorySchedule
from gateway.core.vocabulary import Place
from mesh.channels import client_options, status_in_words
from mesh.clock import Clock
from mesh.control import codec
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import (
    Alive,
    ControlSnapshot,
    FromGateway,
    Hello,
    HistoriesWanted,
    Question,
    QuestionAnswer,
    Report,
    SnapshotRejected,
    SnapshotTaken,
)
from mesh.faults import ConfigError
from mesh.patience import Patience
from mesh.silence import BEAT_NS, next_beat_ns
from mesh.supervisor import Backoff
from mesh.task_group import TaskGroup
from mesh.transport import Transport
from mesh.values import Address
from mesh.wire import WireError
from protos.mesh.v1 import control_pb2 as pb
from protos.mesh.v1 import control_pb2_grpc

_SECOND_NS = 1_000_000_000
_ANSWERS_MAX = 4
"""Unsent answers; until the controller reads them, no further snapshot is read from it."""

_READS_NOTHING = "it reads nothing"
_NONSENSE = "what it says is no message"

_Call = grpc.aio.StreamStreamCall[pb.AttachRequest, pb.AttachResponse]


class ControllerLost(Exception):
    """Stream has ended; the message says why."""


class Gateway(Protocol):
    """Gateway that the attachment speaks for."""

    def hello(self) -> Hello: ...

    def attached(self) -> None:
        """A controller is heard again."""
        ...

    def report(self) -> Report: ...

    async def take(self, snapshot: ControlSnapshot) -> None:
        """Put a snapshot in force. Raises ConfigError, and has changed nothing then."""
        ...

    def answer(self, question: Question) -> QuestionAnswer: ...

    def histories(self, place: Place) -> list[HistoryOffer]:
        """Histories of the pools that the gateway serves and that may be at the controller's place."""
        ...

    def take_history(self, history: PoolHistory) -> None:
        """Go on with the history of a pool that the gateway serves from the next snapshot on."""
        ...


class Tallies(Struct):
    taken: int = 0
    rejected: int = 0
    lost: int = 0
    """Streams that broke, or could not be opened."""
    last_rejection: str = ""
    """Reason why the last snapshot was rejected; empty once a later one was taken."""
    last_loss: str = ""


class Attachment:
    """Attachment to one controller at a time, for the gateway's lifetime."""

    def __init__(
        self,
        settings: ControlConfig,
        transport: Transport,
        gateway: Gateway,
        *,
        clock: Clock,
        rng: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        self.tallies = Tallies()
        self.controller: Address | None = None
        """Controller that the gateway is attached to: it has sent a message on the open stream."""
        self.heard_ns: int | None = None
        """Time of the last message of any controller."""
        self.settings = settings
        self.gateway = gateway
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._log = log
        self._backoff = Backoff(settings.reconnect_min_ns, settings.reconnect_max_ns)
        self._news = asyncio.Event()
        self._retry = asyncio.Event()
        """Set when the pause after the current attempt is to end early."""
        self._is_report_due = False

    @property
    def silent_ns(self) -> int | None:
        """Nanoseconds since the last message of a controller; None if there was none."""
        return None if self.heard_ns is None else self._clock.now_ns() - self.heard_ns

    def changed(self) -> None:
        """Wake the stream, to send unsent answers, and the announcement and the policy again if they have changed."""
        self._news.set()

    def report_soon(self) -> None:
        """Send a report soon, since a peer's link broke."""
        self._is_report_due = True
        self._news.set()

    def try_at_once(self) -> None:
        """End the pause after a failed attempt to attach, now or once it begins: a peer was found, so that the network
        may be back."""
        self._retry.set()

    async def run(self) -> Never:
        """Stay attached until cancelled. The controllers take turns; one whose stream was stable is tried again
        first."""
        turn = failures = 0
        while True:
            address = self.settings.controllers[turn % len(self.settings.controllers)]
            began_ns, was_attached = self._clock.now_ns(), False
            self._retry.clear()
            try:
                await self._attach(address)
            except ControllerLost as lost:
                was_attached = self.controller is not None
                self._tell_of_loss(address, lost, was_attached=was_attached)
            finally:
                self.controller = None
            well_ns = self._clock.now_ns() - began_ns if was_attached else 0
            failures = self._backoff.failures_in_a_row(failures, well_ns)
            turn += not was_attached or failures > 1
            await self._pause(self._backoff.pause_s(failures, self._rng))

    async def _pause(self, longest_s: float) -> None:
        """Wait up to `longest_s` seconds; after `reconnect_min` at the least, `try_at_once` ends it."""
        least_s = min(longest_s, self.settings.reconnect_min_ns / _SECOND_NS)
        await asyncio.sleep(least_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s - least_s):
                await self._retry.wait()

    async def _attach(self, address: Address) -> Never:
        version = self._transport.version
        channel = self._transport.open_controller_channel(str(address), client_options(self.settings))
        try:
            stub: control_pb2_grpc.ControlServiceAsyncStub = control_pb2_grpc.ControlServiceStub(channel)
            call = stub.Attach()
            try:
                await self._converse(call, address, version)
            finally:
                call.cancel()
        finally:
            await channel.close()

    async def _converse(self, call: _Call, address: Address, version: int) -> Never:
        conversation = _Conversation(self, call, address)
        try:
            async with TaskGroup() as tasks:
                tasks.create_task(conversation.say())
                tasks.create_task(conversation.hear())
                tasks.create_task(self._until_credentials_change(version))
        except* ControllerLost as group:
            raise _first(group) from None
        raise AssertionError("a conversation ends by being lost")

    async def _until_credentials_change(self, version: int) -> None:
        await self._transport.newer_than(version)
        raise ControllerLost("our credentials have changed")

    def _tell_of_loss(self, address: Address, lost: ControllerLost, *, was_attached: bool) -> None:
        """Log the loss once for each reason, not once for each try."""
        self.tallies.lost += 1
        if was_attached or str(lost) != self.tallies.last_loss:
            if was_attached:
                self._log.warning("controller_disconnected", controller=str(address), reason=str(lost))
            else:
                self._log.warning("controller_unreachable", controller=str(address), reason=str(lost))
        self.tallies.last_loss = str(lost)

    # Conversation

    def heard(self, address: Address) -> None:
        self.heard_ns = self._clock.now_ns()
        if self.controller is None:
            self.controller = address
            self.tallies.last_loss = ""
            self._log.info("controller_attached", controller=str(address))
            self.gateway.attached()

    async def until_news(self, until_s: float) -> bool:
        """Wait for news, or until a time of the event loop's clock. Returns True if the news calls for a report."""
        try:
            async with asyncio.timeout_at(until_s):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        is_due, self._is_report_due = self._is_report_due, False
        return is_due

    async def answer_to(self, message: pb.AttachResponse) -> FromGateway:
        """Put a snapshot in force, or reject it with the reason."""
        version = codec.version_of(message)
        try:
            said = await asyncio.to_thread(codec.read_from_controller, message)
            assert isinstance(said, ControlSnapshot), "only snapshots are answered"
            await self.gateway.take(said)
        except (WireError, ConfigError) as error:
            self.tallies.rejected += 1
            self.tallies.last_rejection = str(error)
            self._log.error(
                "snapshot_rejected",
                term=version.term,
                version=version.version,
                reason=str(error),
            )
            return SnapshotRejected(version, str(error))
        self.tallies.taken += 1
        self.tallies.last_rejection = ""
        return SnapshotTaken(version)


class _Conversation:
    """Conversation on one stream. Both of its loops end in ControllerLost."""

    def __init__(self, attachment: Attachment, call: _Call, address: Address) -> None:
        self._attachment = attachment
        self._settings = attachment.settings
        self._gateway = attachment.gateway
        self._call = call
        self._address = address
        self._histories = HistorySchedule()
        self._answers: deque[FromGateway] = deque()
        self._answered = asyncio.Event()

    async def say(self) -> Never:
        hello = self._gateway.hello()
        await self._write(hello)
        report_at_s = await self._report()
        loop = asyncio.get_running_loop()
        beat_at_ns = _now_ns(loop) + BEAT_NS
        while True:
            is_report_due = await self._attachment.until_news(min(report_at_s, beat_at_ns / _SECOND_NS))
            await self._write_answers()
            now = self._gateway.hello()
            if now.announcement != hello.announcement:
                await self._write(now.announcement)
            if now.policy != hello.policy:
                await self._write(now.policy)
            hello = now
            if is_report_due or loop.time() >= report_at_s:
                report_at_s = await self._report()
                await self._write_histories(_now_ns(loop))
            if (now_ns := _now_ns(loop)) >= beat_at_ns:
                beat_at_ns = next_beat_ns(beat_at_ns, now_ns)
                await self._write(Alive())

    async def hear(self) -> Never:
        while True:
            message = await self._bounded(self._call.read(), "it fell silent")
            if not isinstance(message, pb.AttachResponse):
                raise ControllerLost(_NONSENSE if message is None else await self._how_it_ended())
            self._attachment.heard(self._address)
            answer = await self._answer_to(message)
            if answer is not None:
                self._answers.append(answer)
                self._attachment.changed()
                await self._until_few_are_unsent()

    async def _answer_to(self, message: pb.AttachResponse) -> FromGateway | None:
        kind = message.WhichOneof("kind")
        if kind == "snapshot":
            return await self._attachment.answer_to(message)
        with suppress(WireError):  # an unreadable question gets no answer, and an unreadable history is of no use
            said = codec.read_from_controller(message)
            if isinstance(said, Question):
                return self._gateway.answer(said)
            if isinstance(said, PoolHistory):
                self._gateway.take_history(said)
            if isinstance(said, HistoriesWanted):
                self._histories.place = said.place
        return None

    async def _write_histories(self, now_ns: int) -> None:
        """Send the histories of pools that are due, where the controller takes any."""
        place = self._histories.place
        if place is not None:
            for offer in self._histories.due(self._gateway.histories(place), now_ns):
                await self._write(offer.make())

    async def _report(self) -> float:
        """Send a report, and return when the next one is due, by the event loop's clock."""
        await self._write(self._gateway.report())
        return asyncio.get_running_loop().time() + self._settings.report_interval_ns / _SECOND_NS

    async def _write_answers(self) -> None:
        while self._answers:
            await self._write(self._answers.popleft())
            self._answered.set()

    async def _until_few_are_unsent(self) -> None:
        while len(self._answers) >= _ANSWERS_MAX:
            self._answered.clear()
            await self._bounded(self._answered.wait(), _READS_NOTHING)

    async def _write(self, said: FromGateway) -> None:
        await self._bounded(self._call.write(codec.said_by_gateway(said)), _READS_NOTHING)

    async def _bounded(self, wait: Awaitable[object], too_long: str) -> object:
        try:
            async with Patience(self._settings.silence_max_ns / _SECOND_NS):
                return await wait
        except TimeoutError as error:
            raise ControllerLost(too_long) from error
        except grpc.aio.AioRpcError as error:
            raise ControllerLost(_in_words(error.code(), error.details())) from error
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise ControllerLost(await self._how_it_ended()) from error

    async def _how_it_ended(self) -> str:
        """Reason why the stream ended; asked once it has."""
        if not self._call.done():
            return "the stream is closed"
        return _in_words(await self._call.code(), await self._call.details())


def _now_ns(loop: asyncio.AbstractEventLoop) -> int:
    return int(loop.time() * _SECOND_NS)


def _in_words(code: grpc.StatusCode, details: str | None) -> str:
    return "it closed the stream" if code is grpc.StatusCode.OK else status_in_words(code, details)


def _first(group: BaseExceptionGroup[ControllerLost]) -> ControllerLost:
    found = group.exceptions[0]
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
