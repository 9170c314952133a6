"""Unix socket between the two processes of one gateway: whole messages with a limit and a deadline, and the identity of
the process at the other end. It decides nothing.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from gateway.takeover.messages import MESSAGE_BYTES_MAX, FromPredecessor, FromSuccessor
from mesh.clock import Clock
from mesh.private_files import make_private_folder

SEND_MAX_S = 5.0
"""Seconds for the other process to read a message."""
_MODE = 0o600
_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")
_SOCKETS_MAX = 64
_PIECE_BYTES = 256 * 1024
_SECOND_NS = 1_000_000_000

_Heard = TypeVar("_Heard")


class TakeOverFault(Exception):
    """The hand-over failed; the message says why."""


class CounterpartGone(OSError):
    """The other process has closed its end of the connection, as happens when it dies."""


class Counterpart:
    """Process at the other end."""

    def __init__(self, connection: socket.socket, own_uid: int) -> None:
        """Find out the process. Raises TakeOverFault for one of another user."""
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(told)
        self.pid: int = pid
        if uid != own_uid:
            raise TakeOverFault(f"the process at the other end runs as user {uid}, and this one as {own_uid}")
        try:
            self._handle = os.pidfd_open(self.pid)
        except OSError as error:
            raise TakeOverFault(f"process {self.pid} cannot be watched from here: {error.strerror}") from error

    def has_ended(self, wait_max_s: float) -> bool:
        return _is_ready(self._handle, select.POLLIN, wait_max_s)

    def end(self, wait_max_s: float) -> bool:
        """Wait for the process to end by itself within this time, or kill it: were it only slow, two processes would
        own one gateway. Returns False where it has not ended even so."""
        if self.has_ended(wait_max_s):
            return True
        with suppress(OSError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        return self.has_ended(SEND_MAX_S)

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class Wire(Generic[_Heard]):
    """Connection to the other process."""

    def __init__(
        self,
        connection: socket.socket,
        heard: Any,
        *,
        send_max_s: float = SEND_MAX_S,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        """Take over the connection. `heard` is the type of the messages that the other end may send. Raises
        TakeOverFault for another user's process."""
        try:
            self.other = Counterpart(connection, os.geteuid())
        except TakeOverFault:
            connection.close()
            raise
        connection.setblocking(False)
        self._socket = connection
        self._decoder: msgspec.json.Decoder[_Heard] = msgspec.json.Decoder(heard)
        self._unread = bytearray()
        self._send_max_ns = int(send_max_s * _SECOND_NS)
        self._now_ns = now_ns or Clock().now_ns
        self._one_sender = threading.Lock()
        self._is_broken = False

    def send(self, message: FromSuccessor | FromPredecessor, sockets: Sequence[socket.socket] = ()) -> None:
        """Send a message, from any thread. Raises OtherGone, also for a process that has not read all of it in time. A
        message that was sent in part ends the connection: each later call raises OtherGone at once."""
        with self._one_sender:
            if self._is_broken:
                raise CounterpartGone("the connection to the other process is broken")
            try:
                self._send_whole(msgspec.json.encode(message), [each.fileno() for each in sockets])
            except CounterpartGone:
                self._break_off()
                raise

    def _send_whole(self, text: bytes, handles: list[int]) -> None:
        if len(text) > MESSAGE_BYTES_MAX:
            raise CounterpartGone(f"a message of {len(text)} bytes is larger than the other process may be sent")
        rest, until_ns = memoryview(_LENGTH.pack(len(text)) + text), self._now_ns() + self._send_max_ns
        while rest:
            rest = rest[self._send_piece(rest, handles, until_ns) :]
            handles = []

    def _send_piece(self, piece: memoryview, handles: list[int], until_ns: int) -> int:
        while True:
            try:
                return socket.send_fds(self._socket, [piece[:_PIECE_BYTES]], handles)
            except BlockingIOError:
                if not _is_ready(self._socket.fileno(), select.POLLOUT, (until_ns - self._now_ns()) / _SECOND_NS):
                    raise CounterpartGone("the other process reads nothing, or too slowly") from None
            except OSError as error:
                raise CounterpartGone(f"the other process is gone: {error.strerror}") from error

    def _break_off(self) -> None:
        """Shut the connection down, so that the other end notices as well."""
        self._is_broken = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def receive(self, wait_max_s: float | None) -> _Heard:
        """Receive a message. Raises OtherGone at the end of the connection, TimeoutError, and TakeOverFault for a
        malformed message."""
        async with asyncio.timeout(wait_max_s):
            while (message := self._whole_message()) is None:
                try:
                    piece = await asyncio.get_running_loop().sock_recv(self._socket, _PIECE_BYTES)
                except OSError as error:
                    raise CounterpartGone(f"the other process is gone: {error.strerror}") from error
                self._take(piece)
        return message

    def receive_sockets(self, wait_max_s: float) -> tuple[_Heard, list[socket.socket]]:
        """Receive the first message and its sockets, outside any event loop. Raises what `receive` does."""
        sockets: list[socket.socket] = []
        while (message := self._whole_message()) is None:
            if not _is_ready(self._socket.fileno(), select.POLLIN, wait_max_s):
                raise TimeoutError
            piece, handles, _, _ = socket.recv_fds(self._socket, _PIECE_BYTES, _SOCKETS_MAX)
            sockets.extend(socket.socket(fileno=handle) for handle in handles)
            for each in sockets:
                each.set_inheritable(False)
            self._take(piece)
        return message, sockets

    def _take(self, piece: bytes) -> None:
        if not piece:
            raise CounterpartGone("the other process has closed the connection")
        self._unread += piece

    def _whole_message(self) -> _Heard | None:
        if len(self._unread) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._unread)
        if length > MESSAGE_BYTES_MAX:
            raise TakeOverFault(f"the other process sends a message of {length} bytes: {MESSAGE_BYTES_MAX} are read")
        end = _LENGTH.size + length
        if len(self._unread) < end:
            return None
        text = bytes(self._unread[_LENGTH.size : end])
        del self._unread[:end]
        try:
            return self._decoder.decode(text)
        except msgspec.DecodeError as error:
            raise TakeOverFault(f"the other process sends what is no message: {error}") from error

    def close(self) -> None:
        """Close the connection and the process handle; it may be called again."""
        self._is_broken = True
        self._socket.close()
        self.other.close()


def _is_ready(handle: int, event: int, wait_max_s: float) -> bool:
    """Poll a handle of any number; `select.select` takes none from 1024 on, which a gateway with many connections
    has."""
    watch = select.poll()
    watch.register(handle, event)
    return bool(watch.poll(max(0.0, wait_max_s) * 1000))


def listen_at(path: Path) -> socket.socket:
    """Listen at the path, in place of a process that listened there before. Raises OSError."""
    make_private_folder(path.parent)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.setblocking(False)
        with _short_name(fresh) as name:
            listening.bind(name)
        fresh.chmod(_MODE)
        listening.listen(1)
        fresh.replace(path)
    except OSError:
        listening.close()
        raise
    return listening


def connect_to(path: Path) -> Wire[FromPredecessor] | None:
    """Connect to the process at the path; None where no process listens. Raises TakeOverFault and OSError."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(SEND_MAX_S)
        with _short_name(path) as name:
            connection.connect(name)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError:
        connection.close()
        raise
    return Wire(connection, FromPredecessor)


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """Path with a short folder, as a Unix socket's name may have at most 107 bytes."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
