"""Options of a client's connection by which the system closes it once the client has vanished."""

from __future__ import annotations

import socket
import sys

_PROBES_IN_STALL = 4
"""Divisor of `stall_s`: TCP asks a client from which nothing comes for a sign of life after this part of it."""


def give_up_when_gone(own: socket.socket, stall_s: float) -> None:
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
