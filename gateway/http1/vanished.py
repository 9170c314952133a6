"""Notices that the host at the other end of a connection has vanished, by TCP's own signs of life. Only Linux tells
soon enough."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Final

_PROBES_IN_STALL = 4
"""Divisor of `stall_s`: TCP asks a client without a running request for a sign of life after this part of it."""
_PROBE_S = 1
"""Seconds without a sign of life after which a host that is waited for is asked for one, and asked again."""
_ENGINE_PROBES = 2
"""Probes without an answer after which an engine's host has vanished. Its kernel answers them, so that an engine that
is busy, or stopped, is never given up."""
_CLIENT_PROBES = 4
"""Probes in a row without an answer, of keep-alive or of a closed window, of a client that has vanished. The last one's
answer may still be on its way."""
_CLIENT_RETRANSMITS = 3
"""Retransmissions in a row without an acknowledgement of a client that has vanished. At 1 % loss a living host loses so
many once in a million times."""
_TCP_INFO_BYTES: Final = 60
"""Length of the part of the kernel's `struct tcp_info` that is read: it never changes."""


def give_up_vanished_engine(own: socket.socket) -> None:
    """Have the system close a connection to an engine whose host answers no probe of TCP's keep-alive: three seconds
    after its last sign of life."""
    if sys.platform != "linux":
        return
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _ENGINE_PROBES)


def is_silent(tcp_info: bytes, silence_s: float) -> bool:
    """Tell from a connection's `struct tcp_info` whether its other end has acknowledged nothing for `silence_s`, though
    it was asked to. A host whose program does not read still answers, and one that is asked nothing owes no answer."""
    if len(tcp_info) < _TCP_INFO_BYTES:
        return False
    retransmits, probes = tcp_info[2], tcp_info[3]
    last_ack_ms = int.from_bytes(tcp_info[56:60], sys.byteorder)
    is_asked = retransmits >= _CLIENT_RETRANSMITS or probes >= _CLIENT_PROBES
    return is_asked and last_ack_ms >= silence_s * 1000


class ClientHost:
    """Host at the other end of a client's connection."""

    __slots__ = ("_is_watched", "_own", "_probe_s", "_silence_s")

    def __init__(self, own: socket.socket, *, stall_s: float, silence_s: float) -> None:
        """The system closes a connection of which nothing is acknowledged for `stall_s`, neither data nor probes
        (RFC 5482). `silence_s`: the same while a request runs, which is looked for from time to time: the system's own
        limit would also end clients that read nothing for so long, though their hosts answer."""
        self._own = own
        self._silence_s = silence_s
        self._probe_s = max(1, round(stall_s / _PROBES_IN_STALL))
        self._is_watched = False
        if sys.platform == "linux":
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stall_s * 1000))
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, self._probe_s)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)

    def has_vanished(self) -> bool:
        """Tell whether the host has vanished, and have it asked every second from now on. A socket that cannot be asked
        tells nothing: its connection has just ended."""
        if sys.platform != "linux":
            return False
        try:
            self._ask_after(_PROBE_S, is_watched=True)
            told = self._own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            return False
        return is_silent(told, self._silence_s)

    def leave_alone(self) -> None:
        """Have the host asked rarely again: no request of it runs."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._ask_after(self._probe_s, is_watched=False)

    def _ask_after(self, idle_s: int, *, is_watched: bool) -> None:
        if self._is_watched is not is_watched:
            self._is_watched = is_watched
            self._own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
