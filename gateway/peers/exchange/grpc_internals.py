"""The one thing of gRPC's inside that an exchange leans on: how a message goes out.

gRPC's own `write` notes a message that found its call over as an internal error of that call, and forgets the status
that the other end gave: that it knows of no exchange, or which rule was broken. No state of a call is touched here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

Write = Callable[[bytes], Awaitable[object]]


class CallOver(Exception):
    """The call is over. Who reads from it learns why."""


def writer_of(call: Any) -> Write:
    """Raises CallOver where a message finds no way out any more."""
    inner = getattr(call, "_cython_call", None)
    if inner is None:
        return cast(Write, call.write)  # no call of gRPC's
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
