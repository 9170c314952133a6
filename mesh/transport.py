"""Interfaces of connections between gateways, for both ends.

`Plaintext` trusts every caller, and so is for loopback and for networks that protect themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import grpc.aio

from gateway.core.vocabulary import GatewayId, Place

AuthContext = Mapping[str, Iterable[bytes]]
"""Properties of a caller that gRPC found while connecting."""
Claim = tuple[GatewayId, Place]
"""Gateway id and place that a caller claims."""
ChannelOptions = Sequence[tuple[str, int]]


class ServerTransport(Protocol):
    """Transport as the listening end needs it."""

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        """Listen at the address. Returns the port; raises RuntimeError where it cannot be listened on."""
        ...

    def caller_fault(self, auth: AuthContext, claim: Claim | None) -> str | None:
        """Reason why a caller may not call, or may not claim to be `claim`; None where it may."""
        ...


class Transport(ServerTransport, Protocol):
    @property
    def version(self) -> int:
        """Version of the credentials; it grows whenever channels should be opened again."""
        ...

    async def newer_than(self, version: int) -> None:
        """Wait for another version."""
        ...

    def open_channel(
        self, address: str, gateway_id: GatewayId, place: Place, options: ChannelOptions
    ) -> grpc.aio.Channel:
        """Open a channel that, as far as can be verified, reaches that gateway alone."""
        ...

    def open_controller_channel(self, address: str, options: ChannelOptions) -> grpc.aio.Channel:
        """Open such a channel to a controller of this mesh."""
        ...


class Plaintext:
    """Transport without any protection."""

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
