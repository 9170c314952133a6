"""Server of the gateways' streams: on its stream a gateway announces itself and receives its snapshots.

The server decides nothing. A gateway is sent only stored state, and a slow one only the newest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, assert_never

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from msgspec import Struct
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from controller.config import LinkConfig
from controller.core.events import GatewayDisconnected, GrantsLeftOut, PeersHeard
from controller.core.vocabulary import HeardPeer
from controller.decision_queries import GatewayQuestions
from controller.history_exchange import HistoryExchange
from controller.links import Link, Links
from controller.registry import AnnouncementRefused, PlaceRefused
from controller.snapshots import snapshot_for
from controller.state_manager import StateManager
from controller.store.store import StoreError
from controller.views import View
from gateway.core.kernel.residency import ResidencyPolicy
from mesh.channels import server_options, stop_at_once
from mesh.clock import Clock
from mesh.control.codec import read_from_gateway, said_by_controller
from mesh.control.pool_history import PoolHistory
from mesh.control.vocabulary import (
    AfterHello,
    Alive,
    Announcement,
    FromGateway,
    Hello,
    QuestionAnswer,
    Report,
    SnapshotRejected,
    SnapshotTaken,
)
from mesh.listening import why_not
from mesh.patience import Patience
from mesh.silence import SilenceDetector
from mesh.supervisor import Backoff
from mesh.task_group import TaskGroup
from mesh.transport import ServerTransport
from mesh.values import Address
from mesh.wire import WireError
from protos.mesh.v1 import control_pb2 as pb
from protos.mesh.v1 import control_pb2_grpc

_SECOND_NS = 1_000_000_000
_REPORTS_APART_NS = 50_000_000
"""Shortest mean interval of reports. Faster ones are skipped, since each is complete and costs a pass over all
gateways, but for one ahead of its time: the report of a lost peer may follow a regular one at once."""
_NEWS_APART_S = 0.1
"""Pause between registrations of a gateway: each costs a write, and a snapshot for every gateway."""
_RETRY = Backoff(min_ns=200_000_000, max_ns=5 * _SECOND_NS)
_MESSAGE_ROOM_BYTES = 1024

_Context = grpc.aio.ServicerContext[pb.AttachRequest, pb.AttachResponse]


class _End(Struct, frozen=True):
    """Status and reason with which a stream ends, as sent to the gateway."""

    code: grpc.StatusCode
    detail: str


class ServerWatch:
    """Hooks for the events of streams; this class does nothing in them."""

    def refused(self, reason: str) -> None: ...
    def pushed(self, size_bytes: int) -> None: ...
    def rejected(self) -> None: ...


class ControlService:
    """The only call of `control.proto`."""

    def __init__(
        self,
        manager: StateManager,
        links: Links,
        questions: GatewayQuestions,
        transport: ServerTransport,
        config: LinkConfig,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        histories: HistoryExchange,
        watch: ServerWatch | None = None,
        on_link: Callable[[], None] = lambda: None,
        elsewhere: Callable[[], str] = lambda: "",
    ) -> None:
        """`on_link` is called whenever a stream has opened or closed; `elsewhere` returns the reason why gateways
        should look for another controller, empty while they should not."""
        self.links = links
        self._questions = questions
        self._manager = manager
        self._transport = transport
        self._config = config
        self._clock = clock
        self._log = log
        self._histories = histories
        self._watch = watch or ServerWatch()
        self._on_link = on_link
        self._elsewhere = elsewhere
        self._unknown = 0
        """Streams without a hello yet."""

    async def Attach(self, _: object, context: _Context) -> None:  # noqa: N802
        end = await self._attach(context)
        if end.code is not grpc.StatusCode.OK:
            await context.abort(end.code, end.detail)

    async def _attach(self, context: _Context) -> _End:
        if (fault := self._transport.caller_fault(context.auth_context(), None)) is not None:
            return self._refused(context, _End(grpc.StatusCode.PERMISSION_DENIED, fault))
        if reason := self._elsewhere():
            self._watch.refused("not_leading")
            return _End(grpc.StatusCode.UNAVAILABLE, reason)
        if self._unknown >= self._config.gateways_max:
            return self._refused(context, _End(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams without a hello"))
        self._unknown += 1
        try:
            hello = await self._hello(context)
        finally:
            self._unknown -= 1
        if isinstance(hello, _End):
            return self._refused(context, hello)
        claim = hello.gateway_id, hello.place
        if (fault := self._transport.caller_fault(context.auth_context(), claim)) is not None:
            return self._refused(context, _End(grpc.StatusCode.PERMISSION_DENIED, fault))
        if len(self.links) >= self._config.gateways_max and hello.gateway_id not in self.links:
            return self._refused(context, _End(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many gateways"))
        link = Link(hello, self._clock.now_ns(), SilenceDetector(self._config.silence_max_ns))
        link.silence.hear(link.since_ns, is_beat=False)
        return await self._hold(link, context)

    async def _hello(self, context: _Context) -> Hello | _End:
        try:
            async with Patience(self._config.silence_max_ns / _SECOND_NS):
                said = _read(await context.read())
        except TimeoutError:
            return _End(grpc.StatusCode.DEADLINE_EXCEEDED, "no hello came")
        except (WireError, DecodeError) as error:
            return _End(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if not isinstance(said, Hello):
            return _End(grpc.StatusCode.INVALID_ARGUMENT, "a stream begins with hello")
        return said

    def _refused(self, context: _Context, end: _End) -> _End:
        self._watch.refused(end.code.name.lower())
        self._log.error("gateway_attach_refused", reason=end.detail, caller=context.peer())
        return end

    async def _hold(self, link: Link, context: _Context) -> _End:
        await context.send_initial_metadata(())  # alone: a first write that is cut off would send it twice
        self.links.put(link)
        self._log.info("gateway_attached", gateway=link.gateway_id, region=link.hello.place.region)
        why = "its stream broke"
        try:
            end = await _first(
                self._listen(link, context),
                self._watch_silence(link),
                self._tell(link, context),
                self._ask(link, context),
                self._register(link),
                _until_replaced(link),
            )
            why = end.detail
            return end
        finally:
            self._leave(link, why)

    def _leave(self, link: Link, why: str) -> None:
        if not self.links.drop(link):
            self._log.info("gateway_stream_replaced", gateway=link.gateway_id, reason=why)
            return
        self._log.info("gateway_detached", gateway=link.gateway_id, reason=why)
        if link.is_registered or link.follows_registered:
            self._manager.driver.submit(GatewayDisconnected(link.gateway_id, why))
        self._on_link()

    # Messages from the gateway

    async def _listen(self, link: Link, context: _Context) -> _End:
        while True:
            try:
                message = await context.read()
            except grpc.aio.BaseError as error:
                return _End(grpc.StatusCode.ABORTED, f"its stream broke: {error}")
            except DecodeError as error:
                return _End(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            if _is_end(message):
                return _End(grpc.StatusCode.OK, "it has left")
            link.heard_ns = self._clock.now_ns()
            try:
                said = _read(message)
            except WireError as error:
                return _End(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            link.silence.hear(link.heard_ns, is_beat=isinstance(said, Alive))
            if isinstance(said, Hello):
                return _End(grpc.StatusCode.INVALID_ARGUMENT, "hello was said before")
            if said is not None:
                self._heard(link, said)

    async def _watch_silence(self, link: Link) -> _End:
        """Wait until the gateway gives no sign of life for longer than its link makes likely."""
        while True:
            wait_ns = link.silence.look(self._clock.now_ns())
            if not wait_ns:
                silent_s = link.silence.timeout_ns / _SECOND_NS
                return _End(grpc.StatusCode.DEADLINE_EXCEEDED, f"it gave no sign of life for {silent_s:.1f} s")
            await asyncio.sleep(wait_ns / _SECOND_NS)

    def _heard(self, link: Link, said: AfterHello) -> None:
        match said:
            case Announcement():
                link.hello = replace(link.hello, announcement=said)
                link.news.set()
            case ResidencyPolicy():
                link.hello = replace(link.hello, policy=said)
                link.news.set()
            case Report():
                self._reported(link, said)
            case SnapshotTaken():
                link.taken, link.rejected = said.version, None
            case QuestionAnswer():
                self._questions.answered(link.gateway_id, said)
            case PoolHistory():
                self._histories.came(link, said)
            case SnapshotRejected():
                link.rejected = said
                self._watch.rejected()
                self._log.warning(
                    "gateway_rejected_snapshot",
                    gateway=link.gateway_id,
                    version=str(said.version),
                    reason=said.reason,
                )
            case Alive():
                pass
            case _:
                assert_never(said)

    def _reported(self, link: Link, report: Report) -> None:
        now_ns = self._clock.now_ns()
        if not link.is_registered or now_ns + _REPORTS_APART_NS < link.next_report_ns:
            return
        link.next_report_ns = max(link.next_report_ns, now_ns) + _REPORTS_APART_NS
        link.open_requests = report.open_requests
        link.load, link.forwards, link.totals = report.load, report.forwards, report.totals
        link.wanted = report.wanted
        peers = tuple(
            HeardPeer(
                each.gateway_id,
                None if each.heard_ago_ns is None else now_ns - each.heard_ago_ns,
                each.is_broken,
                each.rtt_ns,
            )
            for each in report.peers
        )
        self._manager.driver.submit(PeersHeard(link.gateway_id, peers))
        if report.left_out:
            left_out = tuple((each.replica_id, _printable(each.reason)) for each in report.left_out)
            self._manager.driver.submit(GrantsLeftOut(link.gateway_id, left_out))

    async def _register(self, link: Link) -> _End:
        """Register what the gateway announces, until it is refused. A gateway whose announcement cannot be stored yet
        is served as before."""
        failures = 0
        while True:
            await link.news.wait()
            link.news.clear()
            hello = link.hello
            try:
                self._check_count(hello.announcement)
                await self._manager.register(hello)
            except AnnouncementRefused as refused:
                self._watch.refused("place" if isinstance(refused, PlaceRefused) else "announcement")
                self._log.error("gateway_announcement_refused", gateway=link.gateway_id, reason=str(refused))
                return _End(grpc.StatusCode.FAILED_PRECONDITION, str(refused))
            except StoreError:
                failures += 1
                link.news.set()
                await asyncio.sleep(_RETRY.pause_s(failures))
                continue
            failures = 0
            self._registered(link, hello)
            await asyncio.sleep(_NEWS_APART_S)

    def _check_count(self, announcement: Announcement) -> None:
        """Raises AnnouncementRefused for more replicas than `link.replicas_max`."""
        count, most = len(announcement.replicas), self._config.replicas_max
        if count > most:
            raise AnnouncementRefused(
                f"it announces {count} replicas, and at most {most} are taken (link.replicas_max)"
            )

    def _registered(self, link: Link, hello: Hello) -> None:
        if not link.is_registered:
            link.is_registered = True
            self._manager.connected(hello)
            self._on_link()

    # Messages to the gateway

    async def _tell(self, link: Link, context: _Context) -> _End:
        wanted = self._histories.wanted()
        end = None if wanted is None else await self._write(link, context, said_by_controller(wanted))
        if end is not None:
            return end
        seen: View | None = None
        alive_s = self._config.alive_interval_ns / _SECOND_NS
        while True:
            newest = await self._manager.board.other_than(seen, alive_s)
            if reason := self._elsewhere():
                return _End(grpc.StatusCode.UNAVAILABLE, reason)
            message = None
            if newest is not None and newest is not seen:
                if link.is_registered and link.gateway_id not in newest.registry.gateways:
                    return _End(grpc.StatusCode.FAILED_PRECONDITION, "it was removed by an operator")
                message = self._snapshot(link, newest)
            seen = newest
            if message is not None and message.ByteSize() > self._config.message_max_bytes - _MESSAGE_ROOM_BYTES:
                return _End(grpc.StatusCode.RESOURCE_EXHAUSTED, f"its snapshot has {message.ByteSize()} bytes")
            end = None
            if message is not None and newest is not None:
                end = await self._hand_over(link, newest, context)
            end = end or await self._write(link, context, message or said_by_controller(Alive()))
            if end is not None:
                return end
            if message is not None and newest is not None:
                link.pushed = newest.version
                self._watch.pushed(message.ByteSize())

    async def _hand_over(self, link: Link, view: View, context: _Context) -> _End | None:
        """Send the histories of pools that the gateway serves from this view's snapshot on. Returns the reason why the
        stream is over, if it is."""
        for history in self._histories.due(link, view):
            if (end := await self._write(link, context, said_by_controller(history))) is not None:
                return end
        return None

    async def _ask(self, link: Link, context: _Context) -> _End:
        """Send operators' questions."""
        while True:
            await link.asked_more.wait()
            link.asked_more.clear()
            while link.asked:
                end = await self._write(link, context, said_by_controller(link.asked.popleft()))
                if end is not None:
                    return end

    async def _write(self, link: Link, context: _Context, message: pb.AttachResponse) -> _End | None:
        """Send a message. Returns the reason why the stream is over, if it is."""
        stall_s = self._config.silence_max_ns / _SECOND_NS
        try:
            async with Patience(stall_s), link.writing:
                await context.write(message)
        except TimeoutError:
            return _End(grpc.StatusCode.DEADLINE_EXCEEDED, f"it read nothing for {stall_s:g} s")
        except grpc.aio.BaseError as error:
            return _End(grpc.StatusCode.ABORTED, f"its stream broke: {error}")
        return None

    def _snapshot(self, link: Link, view: View) -> pb.AttachResponse | None:
        """Return the gateway's snapshot; None while the stored announcement differs from the gateway's own, so that it
        is not sent outdated replicas, while the gateway has a newer version and would only reject this one, and once
        the store is lost."""
        is_outdated = link.hello.taken.is_newer_than(view.version) or not view.registry.says(link.hello)
        if self._manager.store_writer.lost.is_set() or is_outdated:
            return None
        return said_by_controller(snapshot_for(link.gateway_id, view))


class ControlServer:
    """The gRPC listener."""

    def __init__(self, service: ControlService, config: LinkConfig, transport: ServerTransport) -> None:
        self._transport = transport
        self._server = grpc.aio.server(options=server_options(config), maximum_concurrent_rpcs=3 * config.gateways_max)
        control_pb2_grpc.add_ControlServiceServicer_to_server(service, self._server)  # type: ignore[arg-type]

    async def start(self, address: Address) -> Address:
        """Listen. Returns the real address, also where the system chose the port. Raises OSError if it is taken."""
        try:
            port = self._transport.add_port(self._server, str(address))
        except RuntimeError as error:
            raise OSError(why_not(address), f"cannot listen on {address} for gateways") from error
        await self._server.start()
        return replace(address, port=port)

    async def stop(self) -> None:
        """Stop at once: gateways go on without the controller, so that none is waited for."""
        await stop_at_once(self._server)


def _is_end(message: object) -> bool:
    """Return whether the stream has ended, which gRPC's types do not show."""
    return message is grpc.aio.EOF


def _read(message: pb.AttachRequest) -> FromGateway | None:
    return None if _is_end(message) else read_from_gateway(message)


def _printable(text: str) -> str:
    """Text of a gateway as it may appear in logs and on the page."""
    return "".join(each if each.isprintable() else "?" for each in text)


async def _until_replaced(link: Link) -> _End:
    await link.replaced.wait()
    return _End(grpc.StatusCode.ABORTED, "a newer stream of this gateway has come")


async def _first(*works: Coroutine[Any, Any, _End]) -> _End:
    """Return the result of the first to end; the others are cancelled."""
    async with TaskGroup() as tasks:
        running = [tasks.create_task(work) for work in works]
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in running:
            each.cancel()
    return done.pop().result()
