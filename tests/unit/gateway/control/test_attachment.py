"""One gateway's end of the control stream, against controllers that stall, lie, send nonsense, send too much or read
nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from msgspec.structs import replace
from structlog.testing import CapturingLogger

from gateway.config.sections import ControlConfig
from gateway.control import attachment as attachment_module
from gateway.control.attachment import Attachment
from gateway.control.histories import HistoryOffer
from gateway.core.vocabulary import ControlVersion, GatewayId, Place
from mesh import silence
from mesh.clock import Clock
from mesh.control import codec
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import (
    Alive,
    ControlSnapshot,
    FromController,
    FromGateway,
    Hello,
    HistoriesWanted,
    PeerGrant,
    Question,
    QuestionAnswer,
    Report,
    SnapshotRejected,
    SnapshotTaken,
)
from mesh.faults import ConfigError
from mesh.transport import Plaintext
from mesh.values import Address
from protos.mesh.v1 import control_pb2 as pb
from tests.fakes.attached import hello
from tests.support.core import EU, MS, SECOND, US
from tests.support.gateways import until
from tests.support.histories import history_of

US_1 = GatewayId("us-1")
Call = grpc.aio.ServicerContext[bytes, bytes]
Script = Callable[[Call], Awaitable[None]]
PATIENT = ControlConfig(
    report_interval_ns=20 * MS, silence_max_ns=60 * SECOND, reconnect_min_ns=5 * MS, reconnect_max_ns=20 * MS
)
HASTY = replace(PATIENT, silence_max_ns=50 * MS)
WRITTEN_TO = "it closed the stream while something was written to it"


class Speaker:
    """The gateway, as far as its stream needs one."""

    def __init__(self) -> None:
        self.said = hello("us-1", US)
        self.taken: list[ControlSnapshot] = []
        self.attachments = 0
        self.refuses = ""
        self.places: list[Place] = []
        """Places of controllers that were asked for histories."""
        self.offers: list[HistoryOffer] = []
        self.histories_taken: list[PoolHistory] = []

    def attached(self) -> None:
        self.attachments += 1

    def hello(self) -> Hello:
        return self.said

    def report(self) -> Report:
        return Report((), 0)

    async def take(self, snapshot: ControlSnapshot) -> None:
        if self.refuses:
            raise ConfigError(self.refuses)
        self.taken.append(snapshot)

    def histories(self, place: Place) -> list[HistoryOffer]:
        self.places.append(place)
        return self.offers

    def take_history(self, history: PoolHistory) -> None:
        self.histories_taken.append(history)

    def answer(self, question: Question) -> QuestionAnswer:
        return QuestionAnswer(question.number, json.dumps(question.wanted).encode())


@dataclass
class Scripted:
    """A controller that plays a script on each stream, byte by byte, and repeats the last one."""

    scripts: list[Script]
    calls: int = 0
    heard: list[FromGateway] = field(default_factory=list)
    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0))

    async def attach(self, _: object, context: Call) -> None:
        script = self.scripts[min(self.calls, len(self.scripts) - 1)]
        self.calls += 1
        await script(context)

    def all(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.heard if isinstance(each, kind)]

    def says(self, *words: FromController | bytes) -> Script:
        """Script that sends these messages, and then receives."""

        async def script(context: Call) -> None:
            for word in words:
                await context.write(word if isinstance(word, bytes) else wire(word))
            while isinstance(message := await context.read(), bytes):
                said = codec.read_from_gateway(pb.AttachRequest.FromString(message))
                assert said is not None
                self.heard.append(said)

        return script


def wire(said: FromController) -> bytes:
    return codec.said_by_controller(said).SerializeToString()


def snapshot(version: int = 1, **more: Any) -> ControlSnapshot:
    return replace(ControlSnapshot(ControlVersion(1, version), US_1), **more)


@asynccontextmanager
async def scripted(*scripts: Script) -> AsyncIterator[Scripted]:
    controller = Scripted(list(scripts))
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(controller.attach)
    server = grpc.aio.server()
    service = pb.DESCRIPTOR.services_by_name["ControlService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Attach": handler}),))
    controller.address = Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    try:
        yield controller
    finally:
        await server.stop(0)


@dataclass
class Gateway:
    attachment: Attachment
    speaker: Speaker
    log: CapturingLogger

    def logged(self, words: str) -> list[dict[str, Any]]:
        return [call.kwargs for call in self.log.calls if words in call.args]

    @property
    def tallies(self) -> tuple[int, int]:
        return self.attachment.tallies.taken, self.attachment.tallies.rejected


@asynccontextmanager
async def attached(controllers: Iterable[Scripted], settings: ControlConfig = PATIENT) -> AsyncIterator[Gateway]:
    settings = replace(settings, controllers=tuple(each.address for each in controllers))
    speaker, log = Speaker(), CapturingLogger()
    attachment = Attachment(settings, Plaintext(), speaker, clock=Clock(), rng=random.Random(1), log=log)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(attachment.run())
        yield Gateway(attachment, speaker, log)
        running.cancel()


async def silent(_: Call) -> None:
    """Script that accepts the call and sends nothing."""
    await asyncio.Event().wait()


async def test_what_is_said_is_taken_and_answered_in_order() -> None:
    async with scripted() as controller:
        controller.scripts.append(controller.says(snapshot(1), Alive(), snapshot(2)))
        async with attached([controller]) as gateway:
            await until(lambda: len(controller.all(SnapshotTaken)) == 2)
            assert isinstance(controller.heard[0], Hello)
            assert [each.version.version for each in controller.all(SnapshotTaken)] == [1, 2]
            assert gateway.speaker.taken == [snapshot(1), snapshot(2)]
            assert gateway.attachment.controller == controller.address
            assert gateway.speaker.attachments == 1, "told once, however much the controller says"


async def test_a_question_is_answered_by_its_number_between_snapshots() -> None:
    async with scripted() as controller:
        controller.scripts.append(controller.says(Question(5, "r-1"), snapshot(1), Question(6, "x" * 500)))
        async with attached([controller]) as gateway:
            await until(lambda: len(controller.all(QuestionAnswer)) == 2)
            assert controller.all(QuestionAnswer) == [
                QuestionAnswer(5, b'"r-1"'),
                QuestionAnswer(6, b'"' + b"x" * 500 + b'"'),
            ]
            assert gateway.speaker.taken == [snapshot(1)]


async def test_one_that_says_nothing_is_left_and_the_next_one_tried() -> None:
    async with scripted(silent) as first, scripted() as second:
        second.scripts.append(second.says(Alive()))
        async with attached([first, second], HASTY) as gateway:
            await until(lambda: bool(gateway.logged("controller_attached")))
            assert gateway.logged("controller_attached")[0] == {"controller": str(second.address)}
            assert gateway.logged("controller_unreachable")[0]["reason"] == "it fell silent"


async def test_a_pause_between_attempts_ends_at_once_when_the_network_may_be_back() -> None:
    settings = replace(PATIENT, controllers=(Address("127.0.0.1", 1),))
    for is_early in (False, True):
        attachment = Attachment(
            settings, Plaintext(), Speaker(), clock=Clock(), rng=random.Random(1), log=CapturingLogger()
        )
        if is_early:
            attachment.try_at_once()
        async with asyncio.TaskGroup() as tasks:
            pause = tasks.create_task(attachment._pause(3600.0))
            if not is_early:
                await asyncio.sleep(0)
                assert not pause.done()
                attachment.try_at_once()


async def test_nonsense_ends_the_stream_and_is_told_of_once_for_all_tries() -> None:
    async with scripted() as controller:
        controller.scripts.append(controller.says(b"\xff\xff\xff"))
        async with attached([controller]) as gateway:
            await until(lambda: controller.calls > 3)
            told = gateway.logged("controller_unreachable")
            assert len(told) == 1
            assert told[0]["reason"] == "what it says is no message"
            assert gateway.tallies == (0, 0)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (snapshot(gateway_id=GatewayId("no name!")), "snapshot.gateway_id"),
        (snapshot(peers=(PeerGrant(GatewayId("eu-1"), US, "nowhere"),)), r"snapshot.peers\[0\].address"),
        (snapshot(parameters="{" * (codec.DOCUMENT_LENGTH_MAX + 1)), "snapshot.parameters"),
    ],
)
async def test_a_snapshot_that_breaks_a_bound_is_rejected_by_its_version_and_the_stream_goes_on(
    said: ControlSnapshot, why: str
) -> None:
    async with scripted() as controller:
        controller.scripts.append(controller.says(said, snapshot(2)))
        async with attached([controller]) as gateway:
            await until(lambda: bool(controller.all(SnapshotTaken)))
            (rejected,) = controller.all(SnapshotRejected)
            assert rejected.version == said.version
            with pytest.raises(AssertionError, match=why):
                raise AssertionError(rejected.reason)
            assert gateway.speaker.taken == [snapshot(2)]
            assert (gateway.tallies, gateway.attachment.tallies.last_rejection) == ((1, 1), "")
            assert controller.calls == 1


async def test_one_that_cannot_be_served_by_is_rejected_with_the_gateways_reason() -> None:
    async with scripted() as controller:
        controller.scripts.append(controller.says(snapshot(3)))
        async with attached([controller]) as gateway:
            gateway.speaker.refuses = "it is older than 2.1, which is in force"
            await until(lambda: bool(controller.all(SnapshotRejected)))
            assert controller.all(SnapshotRejected)[0] == SnapshotRejected(
                ControlVersion(1, 3), gateway.speaker.refuses
            )
            assert gateway.attachment.tallies.last_rejection == gateway.speaker.refuses


async def test_a_message_larger_than_may_be_is_never_read() -> None:
    async with scripted() as controller:
        controller.scripts.append(controller.says(bytes(70_000)))
        async with attached([controller], replace(PATIENT, message_max_bytes=65_536)) as gateway:
            await until(lambda: bool(gateway.logged("controller_unreachable")))
            reason = gateway.logged("controller_unreachable")[0]["reason"]
            assert reason.startswith(("RESOURCE_EXHAUSTED", WRITTEN_TO)), (
                "gRPC loses the reason if it was just written to"
            )
            assert gateway.speaker.taken == []


async def test_a_message_of_a_kind_that_is_not_known_yet_is_a_sign_of_life_and_no_more() -> None:
    async with scripted() as controller:
        controller.scripts.append(controller.says(b"\xfa\x01\x00", snapshot(1)))
        async with attached([controller]) as gateway:
            await until(lambda: bool(controller.all(SnapshotTaken)))
            assert (gateway.tallies, gateway.attachment.tallies.lost) == ((1, 0), 0)


async def test_what_has_changed_of_it_is_said_in_full_and_what_has_not_is_not() -> None:
    async with scripted() as controller:
        controller.scripts.append(controller.says(Alive()))
        async with attached([controller]) as gateway:
            await until(lambda: len(controller.all(Report)) > 1)
            announcement = replace(gateway.speaker.said.announcement, health_url="http://127.0.0.1:7/health")
            gateway.speaker.said = replace(gateway.speaker.said, announcement=announcement)
            gateway.attachment.changed()
            await until(lambda: announcement in controller.heard)
            reports = len(controller.all(Report))
            await until(lambda: len(controller.all(Report)) > reports + 1)
            assert len(controller.all(Hello)) == 1
            assert controller.heard.count(announcement) == 1


async def test_nothing_is_said_of_news_that_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway hears of something many times a second, and each message costs the controller's time."""
    monkeypatch.setattr(attachment_module, "BEAT_NS", 3600 * SECOND)
    async with scripted() as controller:
        controller.scripts.append(controller.says(Alive()))
        async with attached([controller]) as gateway:

            def has_reported_after_news() -> bool:
                gateway.attachment.changed()
                return len(controller.all(Report)) > 5

            await until(has_reported_after_news)
    assert {type(each) for each in controller.heard} == {Hello, Report}


async def test_beats_go_on_beside_whatever_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment_module, "BEAT_NS", 5 * MS)
    monkeypatch.setattr(silence, "BEAT_NS", 5 * MS)
    async with scripted() as controller:
        controller.scripts.append(controller.says(Alive()))
        async with attached([controller], replace(PATIENT, report_interval_ns=1)):
            await until(lambda: len(controller.all(Alive)) > 3)
    assert len(controller.all(Report)) > 3


async def test_histories_of_pools_go_to_a_controller_that_takes_them_once_while_nothing_is_new() -> None:
    async with scripted() as controller:
        controller.scripts.append(controller.says(HistoriesWanted(EU), snapshot(1)))
        async with attached([controller]) as gateway:
            gateway.speaker.offers.append(HistoryOffer(US_1, "pd", 2, lambda: history_of(5, 6)))
            await until(lambda: bool(controller.all(PoolHistory)))
            reports = len(controller.all(Report))
            await until(lambda: len(controller.all(Report)) > reports + 2)
            assert controller.all(PoolHistory) == [history_of(5, 6)]
            assert set(gateway.speaker.places) == {EU}


async def test_no_history_goes_to_a_controller_that_does_not_ask() -> None:
    async with scripted() as controller:
        controller.scripts.append(controller.says(snapshot(1)))
        async with attached([controller]) as gateway:
            gateway.speaker.offers.append(HistoryOffer(US_1, "pd", 2, lambda: history_of(5, 6)))
            await until(lambda: len(controller.all(Report)) > 3)
            assert controller.all(PoolHistory) == []


async def test_a_history_that_comes_is_handed_on_before_the_snapshot_and_a_malformed_one_is_passed_over() -> None:
    bad = replace(history_of(5), home=GatewayId("no name!"))
    async with scripted() as controller:
        controller.scripts.append(controller.says(bad, history_of(5, 6), snapshot(1)))
        async with attached([controller]) as gateway:
            await until(lambda: bool(gateway.speaker.taken))
            assert gateway.speaker.histories_taken == [history_of(5, 6)]
            assert controller.calls == 1
