"""What connections between gateways are made of, as far as those who dial and serve need to know.

`Plaintext` believes everybody, and so is for loopback and for networks that protect themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import grpc.aio

from gateway.core.vocabulary import GatewayId, Place

AuthContext = Mapping[str, Iterable[bytes]]
"""What gRPC learnt of a caller while connecting."""
Claim = tuple[GatewayId, Place]
"""Who a caller says that it is, and where."""
ChannelOptions = Sequence[tuple[str, int]]


class Door(Protocol):
    """What whoever listens needs of it."""

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        """Listen there. Gives the port; raises RuntimeError when the address cannot be listened on."""
        ...

    def caller_fault(self, auth: AuthContext, claim: Claim | None) -> str | None:
        """Why a caller may not call, or may not call itself `claim`; None: nothing speaks against it."""
        ...


class Transport(Door, Protocol):
    @property
    def version(self) -> int:
        """Grows whenever channels should be made anew."""
        ...

    async def newer_than(self, version: int) -> None:
        """Wait for another version."""
        ...

    def open_channel(
        self, address: str, gateway_id: GatewayId, place: Place, options: ChannelOptions
    ) -> grpc.aio.Channel:
        """A channel that, as far as can be told, reaches that gateway and nobody else."""
        ...

    def open_controller_channel(self, address: str, options: ChannelOptions) -> grpc.aio.Channel:
        """The same to a controller of our mesh."""
        ...


class Plaintext:
    """No protection at all."""

    version = 1

    async def newer_than(self, _: int) -> None:
        await asyncio.Event().wait()

    def open_channel(
        self, address: str, _gateway_id: GatewayId, _place: Place, options: ChannelOptions
    ) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, options=list(options))

    def open_controller_channel(self, address: str, options: ChannelOptions) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address, options=list(options))

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        return server.add_insecure_port(address)

    def caller_fault(self, _auth: AuthContext, _claim: Claim | None) -> str | None:
        return None
