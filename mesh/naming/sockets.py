"""Receives and sends datagrams at one address, and answers each from the address that it was sent to. It reads no
content.
"""

from __future__ import annotations

import socket
import struct

from msgspec import Struct

_QUERY_BYTES_MAX = 4096
_CONTROL_BYTES = 128
_IPV4_INFO = struct.Struct("=I4s4s")
"""Interface index, local address and destination in the header (Linux, ip(7))."""
_IPV6_INFO = struct.Struct("=16sI")
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)

Sender = tuple[str, int] | tuple[str, int, int, int]
_Control = list[tuple[int, int, bytes]]


class Datagram(Struct, frozen=True):
    data: bytes
    sender: Sender
    control: _Control
    """Control message with which the answer leaves from the address that the query was sent to."""


class DatagramSocket:
    """UDP socket that is bound to one address, or to all of this machine's. Raises OSError where it cannot be bound."""

    def __init__(self, host: str, port: int, inherited: socket.socket | None = None) -> None:
        """Bind the socket, or take `inherited`, which is already bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if inherited is not None:
            self.socket = inherited
            return
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            if family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self._follow_destinations(host)
            self.socket.bind((host, port))
        except OSError:
            self.socket.close()
            raise

    def receive(self) -> Datagram:
        """Receive a datagram. Raises OSError where there is none, or where a client's host has refused an answer."""
        data, control, _, sender = self.socket.recvmsg(_QUERY_BYTES_MAX, _CONTROL_BYTES)
        return Datagram(data, sender, _control_of_answer(control))

    def answer(self, question: Datagram, answer: bytes) -> None:
        """Send an answer. Raises OSError where it cannot be sent; the caller does not wait, since clients repeat their
        queries."""
        self.socket.sendmsg([answer], question.control, 0, question.sender)

    def close(self) -> None:
        self.socket.close()

    def _follow_destinations(self, host: str) -> None:
        """Ask the system for the destination of each datagram. A socket that is bound to every address would answer
        from any of them, and clients refuse such answers."""
        if host == "0.0.0.0":
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        elif host == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)


def _control_of_answer(control: _Control) -> _Control:
    for level, kind, data in control:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO) and len(data) == _IPV4_INFO.size:
            _, own, _ = _IPV4_INFO.unpack(data)
            return [(level, kind, _IPV4_INFO.pack(0, own, b"\0\0\0\0"))]
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO) and len(data) == _IPV6_INFO.size:
            return [(level, kind, data)]
    return []
