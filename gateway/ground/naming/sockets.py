"""Datagrams in and out at one address, each answered from the address that it was sent to. It reads none of them."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_QUERY_BYTES_MAX = 4096
_CONTROL_BYTES = 128
_IPV4_INFO = struct.Struct("=I4s4s")
"""Interface, our address, and the one in the header (Linux, ip(7))."""
_IPV6_INFO = struct.Struct("=16sI")
_IP_PKTINFO = getattr(socket, "IP_PKTINFO", 8)

Sender = tuple[str, int] | tuple[str, int, int, int]
_Control = list[tuple[int, int, bytes]]


@dataclass(frozen=True, slots=True)
class Datagram:
    data: bytes
    sender: Sender
    control: _Control
    """What makes the answer leave from where the question went."""


class DatagramSocket:
    """Bound to an address, or to all of this machine's. Raises OSError when it cannot be."""

    def __init__(self, host: str, port: int, inherited: socket.socket | None = None) -> None:
        """`inherited` is bound there already."""
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
        """Raises OSError when there is none, or when a client's host has refused an answer."""
        data, control, _, sender = self.socket.recvmsg(_QUERY_BYTES_MAX, _CONTROL_BYTES)
        return Datagram(data, sender, _control_of_answer(control))

    def answer(self, question: Datagram, answer: bytes) -> None:
        """Raises OSError when the way back is full or closed: nobody waits for it, whoever asked asks again."""
        self.socket.sendmsg([answer], question.control, 0, question.sender)

    def close(self) -> None:
        self.socket.close()

    def _follow_destinations(self, host: str) -> None:
        """Bound to every address, the system would answer from whichever it likes, and no client takes that."""
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
