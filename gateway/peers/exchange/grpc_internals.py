"""Sends messages through a private method of gRPC's, the only private part of gRPC that an exchange depends on.

The public `write` records a message that finds its call over as an internal error of the call, and loses the status
that the other end gave, which says that `Exchange` is not served or which rule was broken. The state of a call is not
touched here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

Write = Callable[[bytes], Awaitable[object]]


class CallOver(Exception):
    """The call is over; its status is raised to the task that reads from it."""


def writer_of(call: Any) -> Write:
    """Function that sends a message on the call. It raises CallOver once the call is over."""
    inner = getattr(call, "_cython_call", None)
    if inner is None:
        return cast(Write, call.write)  # not a call of gRPC's own
    sends: Write = inner.send_serialized_message
    is_begun = False

    async def write(message: bytes) -> None:
        nonlocal is_begun
        try:
            if not is_begun:
                await call.wait_for_connection()
                is_begun = True
            await sends(message)
        except (cygrpc.InternalError, grpc.aio.AioRpcError) as error:
            raise CallOver from error

    return write
