"""Options of a connection by which the system closes it once the host at the other end has vanished."""

from __future__ import annotations

import socket
import sys

_PROBES_IN_STALL = 4
"""Divisor of `stall_s`: TCP asks a client from which nothing comes for a sign of life after this part of it."""

_ENGINE_PROBE_S = 1
"""Time after which an engine's host from which nothing comes is asked for a sign of life, and asked again."""
_ENGINE_PROBES = 2
"""Probes without an answer after which an engine's host has vanished. Its kernel answers them, so that an engine that
is busy, or stopped, is never given up."""


def give_up_vanished_engine(own: socket.socket) -> None:
    """Have the system close a connection to an engine whose host answers no probe of TCP's keep-alive: three seconds
    after its last sign of life. Only Linux can do it so soon."""
    if sys.platform != "linux":
        return
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _ENGINE_PROBE_S)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ENGINE_PROBE_S)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _ENGINE_PROBES)


def give_up_vanished_client(own: socket.socket, stall_s: float) -> None:
    """Have the system close a connection whose other end has acknowledged nothing for `stall_s`: neither data nor,
    while there is none, the probes of TCP's keep-alive (RFC 5482). A request that waits has no data on its way. Only
    Linux can do it."""
    if sys.platform != "linux":
        return
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stall_s * 1000))
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe_s = max(1, round(stall_s / _PROBES_IN_STALL))
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
