"""Starts the program `nightside` as a process: by a Python of its own, as operators do, or as a child of a server that
has done the imports, which take a second of a gateway's start.

The server's child is a process with its own pid, descriptors, environment and exit status. It differs in what it
shares with the server: pages of memory, the seed of hashes, and the command line that `ps` shows. A test of any of
those, or of the start itself, takes a Python of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

from mesh.environment import PROCESS_ENVIRONMENT

ROOT = Path(__file__).parents[2]
_PID_BYTES_MAX = 64


class _Exit(asyncio.Protocol):
    """Reader of a child's exit status, a line that the server writes once it has waited for the child."""

    def __init__(self) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.status.set_result(int(data))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.status.done():  # the server has gone, and the system kills its children then
            self.status.set_result(-signal.SIGKILL)


class ForkedProcess:
    """Child of the server, with those members of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, pid: int, status: asyncio.Future[int], out: asyncio.StreamReader, err: asyncio.StreamReader):
        self.pid = pid
        self.stdout = out
        self.stderr = err
        self._status = status

    @property
    def returncode(self) -> int | None:
        return self._status.result() if self._status.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._status)

    async def communicate(self) -> tuple[bytes, bytes]:
        async with asyncio.TaskGroup() as tasks:
            out, err = (tasks.create_task(each.read()) for each in (self.stdout, self.stderr))
        await self.wait()
        return out.result(), err.result()

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # the child has exited, and its status is on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@asynccontextmanager
async def forked(*arguments: str | Path) -> AsyncIterator[ForkedProcess]:
    """Run `nightside` with the arguments. It is killed at the end if it has not exited by itself."""
    loop = asyncio.get_running_loop()
    (from_out, out), (from_err, err), (from_server, status) = (os.pipe() for _ in range(3))
    message = {"arguments": [str(each) for each in arguments], "environ": {**PROCESS_ENVIRONMENT}}
    pid = _fork(json.dumps(message).encode(), out, err, status)
    exits, ending = await loop.connect_read_pipe(_Exit, os.fdopen(from_server, "rb"))
    (said, stdout), (complained, stderr) = await _output(from_out), await _output(from_err)
    process = ForkedProcess(pid, ending.status, stdout, stderr)
    try:
        async with killed_at_the_end(process):
            yield process
    finally:
        for pipe in (exits, said, complained):
            pipe.close()


async def _output(descriptor: int) -> tuple[asyncio.ReadTransport, asyncio.StreamReader]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    return transport, reader


def _fork(message: bytes, *descriptors: int) -> int:
    """Pid of a new child, whose descriptors are handed to the server and closed here."""
    socket.send_fds(_server_socket(), [message], descriptors)
    for each in descriptors:
        os.close(each)
    return int(_server_socket().recv(_PID_BYTES_MAX))


@functools.cache
def _server_socket() -> socket.socket:
    """Socket of this process's server, which is started at the first call and ends with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.support.fork_server", str(its.fileno())]
    environ = {**PROCESS_ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"}  # a process with threads must not fork
    server = subprocess.Popen(
        command, cwd=ROOT, env=environ, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    its.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


AnyProcess = asyncio.subprocess.Process | ForkedProcess


async def end(process: AnyProcess) -> None:
    """Kill the process if it has not exited by itself."""
    if process.returncode is None:
        process.kill()
    await process.wait()


@asynccontextmanager
async def killed_at_the_end(process: AnyProcess) -> AsyncIterator[None]:
    """Kill the process at the end of the block if it has not exited by itself, and read what is left of its output."""
    try:
        yield
    finally:
        await end(process)
        await process.communicate()


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "nightside", *map(str, arguments)]


@asynccontextmanager
async def program(*run: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run any program. It is killed at the end if it has not exited by itself."""
    process = await asyncio.create_subprocess_exec(*run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    async with killed_at_the_end(process):
        yield process


def started(
    *arguments: str | Path, started_by: Sequence[str] = (), fresh: bool = False
) -> AbstractAsyncContextManager[AnyProcess]:
    """Run `nightside`; it is killed at the end if it has not exited by itself.

    `started_by` stands before the command, such as `prlimit`. With it, or if `fresh`, a Python of its own runs it.
    """
    return program(*started_by, *command(*arguments)) if started_by or fresh else forked(*arguments)


async def nightside(*arguments: str | Path, fresh: bool = False) -> tuple[int | None, str, str]:
    """Run the command as an operator does; returns exit code, output and error output."""
    async with started(*arguments, fresh=fresh) as process:
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()
