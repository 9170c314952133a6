"""Hand-over between two processes of one gateway: listening sockets, budgets, audit chain, state files and the
controller's stream go from the running process to the one that replaces it. It only wires; `gateway.takeover` holds the
protocol.

A request stays with the process that began it. Its usage and audit lines are sent to the other process, which alone
writes them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from gateway.app.accounts import Accounts
from gateway.app.listening import ListeningSockets
from gateway.app.observed_core import ObservedCore
from gateway.config.sections import GatewayConfig
from gateway.core.kernel.state import GatewayState
from gateway.core.vocabulary import GatewayId, TenantName
from gateway.peers.server import PeerServer
from gateway.records.audit import Audit
from gateway.records.peer_usage import BudgetName
from gateway.records.usage_book import Rows, UsageAmounts, UsageKey
from gateway.request.callers import KeyId
from gateway.takeover import messages
from gateway.takeover.messages import (
    AccountMessage,
    Audited,
    FromSuccessor,
    Left,
    Passed,
    Released,
    TakeoverOffer,
    TakeoverReady,
    UsageRow,
)
from gateway.takeover.predecessor import Predecessor
from gateway.takeover.successor import Successor
from gateway.takeover.wire import CounterpartGone, Wire
from mesh.listening import named_by, why_not
from mesh.naming.server import Inherited
from mesh.naming.service import NameService
from mesh.supervisor import OwnedLoops, Supervisor
from mesh.task_group import TaskGroup
from mesh.threads import finish_in_thread
from mesh.values import Address

_NAMES = ("names_streams", "names_datagrams")
_LEFT_TOLD_S = 0.2
_PROBED_MAX_S = 5.0
"""Seconds after which a first answer of an engine or a peer is not waited for."""
_LOOK_S = 0.02


def socket_path(folder: Path, gateway_id: GatewayId) -> Path:
    """Socket on which a process of this gateway waits for the next one."""
    return folder / f"{gateway_id}.takeover.sock"


class GatewayParts:
    """Parts of the gateway that this process owns and can hand over."""

    def __init__(self, succession: Takeover, peer_server: PeerServer, names: NameService) -> None:
        self.succession = succession
        self.doors: dict[str, ListeningSockets] = {}
        self.peers_address = succession.config.listen.peers
        self._successor: Wire[FromSuccessor] | None = None
        self._config = succession.config
        self._observed = succession.observed
        self._usage = succession.accounts.usage
        self._tenure = succession.tenure
        self._peer_server = peer_server
        self._names = names

    # Hand-over, step by step

    def why_not(self) -> str:
        if self._observed.is_ending:
            return "it is ending"
        if self._observed.core.draining:
            return "it is drained: undrain it first, or end it and start another"
        if not self.succession.is_alone:
            return "it has taken over itself, and requests of the process before still run"
        return ""

    def offer(self) -> tuple[TakeoverOffer, list[socket.socket]]:
        named, sockets = [], []
        for role, door in self.doors.items():
            for each in door.sockets():
                named.append(Passed(role, str(door.asked)))
                sockets.append(each)
        for asked, both in zip(self._config.dns.listen, self._names.sockets(), strict=False):
            named.extend(Passed(role, str(asked)) for role in _NAMES)
            sockets.extend(both)
        return TakeoverOffer(named, (str(self._config.listen.peers), str(self.peers_address))), sockets

    async def release(self, ready: TakeoverReady) -> Released:
        self._observed.is_given_away = True
        for door in self.doors.values():
            await door.shut()
        await self._names.shut()
        await self._tenure.end()
        if self._observed.audit is not None and _folder_of(self._observed.audit) == ready.audit:
            await self._observed.audit.release()
        return Released(_accounts(await self._usage.release()))

    async def take_back(self) -> None:
        """Take back each part by itself, the doors last. A part that fails is logged, and does not keep the others from
        being taken back."""
        self._observed.is_given_away = False
        with self._told_of("usage"):
            self._usage.take_back()
        if self._observed.audit is not None:
            with self._told_of("audit"):
                self._observed.audit.take_back()
        with self._told_of("loops"):
            self._tenure.begin()
        with self._told_of("dns"):
            await self._names.reopen()
        for role, door in self.doors.items():
            with self._told_of(role):
                await door.reopen()

    @contextmanager
    def _told_of(self, part: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._observed.log.critical("takeover_rollback_failed", part=part, exc_info=error)

    def give_to(self, successor: Wire[FromSuccessor]) -> None:
        self._successor = successor
        self._observed.is_ending = True
        has_ended = partial(successor.other.has_ended, 0.0)
        self._usage.tell(lambda rows, held: _tell_used(successor, rows, held), has_ended)
        if self._observed.audit is not None and self._observed.audit.is_released:
            self._observed.audit.tell(partial(_tell_lines, successor), has_ended)
        for door in self.doors.values():
            door.leave()

    # Predecessor's end

    async def until_empty(self, wait_max_s: float) -> bool:
        """Wait until no request runs here and no client is connected. Returns False if time ran out first."""
        is_empty = False
        async with TaskGroup() as tasks:
            telling = tasks.create_task(self._tell_what_is_left())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_max_s):
                    await self._peer_server.leave(wait_max_s)
                    await self._observed.until_idle()
                    await self.doors["http"].until_empty()
                    is_empty = True
            telling.cancel()
        return is_empty

    async def _tell_what_is_left(self) -> None:
        assert self._successor is not None, "it has taken over"
        while True:
            self._observed.restore_orders()  # the process that serves may have been locked down
            with suppress(CounterpartGone):
                await finish_in_thread(self._successor.send, Left(self._observed.driver.open_requests))
            await asyncio.sleep(_LEFT_TOLD_S)


class Takeover:
    """Hand-over of one gateway's process: it may take over as it starts, and may be taken over while it serves."""

    def __init__(
        self,
        config: GatewayConfig,
        observed: ObservedCore,
        accounts: Accounts,
        tenure: OwnedLoops,
        successor: Successor | None,
    ) -> None:
        self.config = config
        self.observed = observed
        self.accounts = accounts
        self.tenure = tenure
        self.predecessor: Predecessor | None = None
        """Listener for the process that replaces this one; None where there is no state folder or it cannot listen."""
        self._successor = successor
        """Take-over from the process before; None where this process started by itself."""
        observed.metrics.follow_predecessor(lambda: 0 if successor is None else successor.requests_left or 0)

    @property
    def takes_over(self) -> bool:
        return self._successor is not None

    def listening(self, role: str, asked: Address) -> list[socket.socket]:
        return [] if self._successor is None else self._successor.listening(role, asked)

    def names_at(self, asked: Address) -> Inherited | None:
        streams, datagrams = (self.listening(role, asked) for role in _NAMES)
        return (streams[0], datagrams[0]) if streams and datagrams else None

    def peers_address(self) -> Address:
        asked = self.config.listen.peers
        return asked if self._successor is None else self._successor.peers_address(asked)

    async def own(self) -> None:
        """Open the stores, once all is loaded and the process before, if there is one, has released them. Raises
        TakeOverFault, and OSError for an audit log that cannot be written."""
        held: list[AccountMessage] = []
        if self._successor is not None:
            self._check_addresses(self._successor)
            await self._until_probed()
            held = await self._successor.until_released(_folder_of(self.observed.audit))
            self.observed.restore_orders()
        self.accounts.begin()
        self.accounts.usage.take_over({}, _held(held))
        if self.observed.audit is not None:
            self.observed.audit.begin()

    def _check_addresses(self, successor: Successor) -> None:
        """Require that addresses whose sockets are not handed over are free. Raises OSError, before any part has
        moved."""
        listen = self.config.listen
        for role, address in (("http", listen.http), ("admin", listen.admin)):
            if not successor.has(role, address) and (fault := why_not(address)):
                with named_by(f"listen.{role}", address):
                    raise OSError(fault, "")

    def serve(self, estate: GatewayParts, loops: Supervisor) -> None:
        """Begin to serve, with all sockets open: start the owner's loops, and listen for a successor."""
        self.tenure.begin()
        folder, gateway_id = self.config.state.folder, self.config.gateway_id
        if folder is None:
            return
        if self._successor is not None:
            self.observed.log.info("takeover_completed", pid=self._successor.pid)
            self._successor.say_serving()
            loops.run("take_over_before", partial(self._follow, self._successor))
        try:
            self.predecessor = Predecessor(socket_path(folder, gateway_id), gateway_id, estate, self.observed.log)
        except OSError as error:
            self.observed.log.warning("takeover_unavailable", reason=str(error))
        else:
            loops.run("take_over", self.predecessor.run)

    @property
    def is_alone(self) -> bool:
        """True if no request runs in a process that this one took over from."""
        return self._successor is None or self._successor.requests_left is None

    async def until_alone(self) -> None:
        while not self.is_alone:  # noqa: ASYNC110 - rare, and waited for by no request
            await asyncio.sleep(_LOOK_S)

    @property
    def is_taken(self) -> bool:
        """True if another process serves."""
        return self.predecessor is not None and self.predecessor.has_left.is_set()

    async def until_taken(self) -> None:
        await (asyncio.Event() if self.predecessor is None else self.predecessor.has_left).wait()

    def describe(self) -> dict[str, object] | None:
        """State of the take-over; None for a process that started by itself."""
        return None if self._successor is None else self._successor.describe()

    def close(self) -> None:
        """Close the connections once all stores are closed: by then the last records have been sent."""
        if self.predecessor is not None:
            self.predecessor.close()
        if self._successor is not None:
            self._successor.close()

    # Reports of the process before

    def take_used(self, used: messages.UsageMessage) -> None:
        rows = {UsageKey(each.day, KeyId(each.key), TenantName(each.tenant)): _used(each) for each in used.rows}
        self.accounts.usage.take_over(rows, _held(used.accounts))

    def take_lines(self, lines: list[bytes]) -> None:
        assert self.observed.audit is not None, "the process before was told of it"
        self.observed.audit.take_over(lines)

    async def _follow(self, successor: Successor) -> None:
        await successor.follow(self, self.observed.log)
        self.observed.log.info("predecessor_exited", pid=successor.pid)

    async def _until_probed(self) -> None:
        core = self.observed.core
        with suppress(TimeoutError):
            async with asyncio.timeout(_PROBED_MAX_S):
                while not _all_have_answered(core):  # noqa: ASYNC110 - the core has no event to wait for
                    await asyncio.sleep(_LOOK_S)


def _folder_of(audit: Audit | None) -> str:
    return "" if audit is None else str(audit.folder.resolve())


def _all_have_answered(core: GatewayState) -> bool:
    is_asked = all(each.sampled_ns is not None for each in core.replicas)
    return is_asked and all(each.report is not None for each in core.peers)


def _tell_used(successor: Wire[FromSuccessor], rows: Rows, held: Mapping[BudgetName, int]) -> None:
    told = [
        UsageRow(*line, used.requests, used.prompt_tokens, used.cached_tokens, used.output_tokens)
        for line, used in rows.items()
    ]
    successor.send(messages.UsageMessage(told, _accounts(held)))


def _tell_lines(successor: Wire[FromSuccessor], lines: list[bytes]) -> None:
    successor.send(Audited([each.decode() for each in lines]))


def _accounts(held: Mapping[BudgetName, int]) -> list[AccountMessage]:
    return [AccountMessage(*name, set_aside) for name, set_aside in held.items()]


def _held(accounts: list[AccountMessage]) -> dict[BudgetName, int]:
    return {(each.kind, each.name): each.set_aside for each in accounts}


def _used(row: UsageRow) -> UsageAmounts:
    return UsageAmounts(row.requests, row.prompt_tokens, row.cached_tokens, row.output_tokens)
