"""Runs a gateway that answers from outside what it holds in memory, and what of it only the garbage collector would
free.

`python -m tests.support.inspected_gateway REGION_FILE SOCKET`. Commands are lines on a Unix socket, each answered by a
line of JSON. The gateway itself is unchanged, except for the collector while `watch` is in force.
"""

from __future__ import annotations

import gc
import json
import socketserver
import sys
import threading
from collections import Counter
from types import CoroutineType, FrameType, GeneratorType
from typing import Any

from gateway.door.body_memory import BodyMemory
from gateway.http1.server import HttpServer
from nightside import main

BUFFER_BYTES = 1024
"""Size in bytes below which a buffer counts as a header or a name."""
_BUFFERS = (bytes, bytearray, memoryview)
_rooms: list[BodyMemory] = []
_servers: list[HttpServer] = []


def held() -> int:
    """Bytes of bodies that are counted at this moment."""
    return sum(room.bytes for room in _rooms)


def clients() -> int:
    """Client connections that are open."""
    return sum(server.open_connections for server in _servers)


def watch() -> None:
    """Keep unreachable objects from this moment on, to be reported by `garbage`."""
    gc.set_debug(0)
    gc.collect()
    gc.freeze()
    gc.disable()
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)


def garbage() -> dict[str, int]:
    """Frames and buffers that only the collector could free, and their holders, since the last call."""
    gc.collect()
    found = Counter[str]()
    for each in gc.garbage:
        if name := _name_of(each):
            found[name] += 1
        buffers = [told for told in gc.get_referents(each) if isinstance(told, _BUFFERS) and len(told) >= BUFFER_BYTES]
        found.update(f"buffer of {len(told)} bytes in {type(each).__name__}" for told in buffers)
    gc.garbage.clear()
    gc.set_debug(0)
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    return dict(found)


def _name_of(each: object) -> str:
    """Name of an object that matters; empty for others: libraries have small cycles of their own."""
    if isinstance(each, FrameType):
        return f"frame {each.f_code.co_filename}:{each.f_lineno} {each.f_code.co_qualname}"
    if isinstance(each, CoroutineType | GeneratorType):
        return f"{type(each).__name__} {each.__qualname__}"
    if isinstance(each, _BUFFERS) and len(each) >= BUFFER_BYTES:
        return f"buffer of {len(each)} bytes"
    return ""


_COMMANDS = {"held": held, "clients": clients, "watch": watch, "garbage": garbage}


class _Answers(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(json.dumps(_COMMANDS[line.decode().strip()]()).encode() + b"\n")


def _note_rooms() -> None:
    make = BodyMemory.__init__

    def noted(room: BodyMemory, *arguments: Any) -> None:
        make(room, *arguments)
        _rooms.append(room)

    BodyMemory.__init__ = noted  # type: ignore[method-assign, assignment]


def _note_servers() -> None:
    make = HttpServer.__init__

    def noted(server: HttpServer, *arguments: Any, **options: Any) -> None:
        make(server, *arguments, **options)
        _servers.append(server)

    HttpServer.__init__ = noted  # type: ignore[method-assign, assignment]


def run(region_file: str, socket_path: str) -> None:
    _note_rooms()
    _note_servers()
    server = socketserver.UnixStreamServer(socket_path, _Answers)
    answering = threading.Thread(target=server.serve_forever, daemon=True)  # noqa: TID251 - it tells of a loop that hangs
    answering.start()
    main(["gateway", "run", region_file], prog_name="nightside")


if __name__ == "__main__":
    run(*sys.argv[1:])
