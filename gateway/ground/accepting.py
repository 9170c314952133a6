"""How a server on streams is closed without losing what it has accepted: Python 3.11 forgets such connections.

It opens nothing and answers nobody.
"""

from __future__ import annotations

import asyncio

_TURNS_TO_SERVE = 3
"""A connection that was accepted becomes a transport, then a protocol that is told of it, then a task."""


async def hear_of_all_accepted(server: asyncio.Server) -> None:
    """Before it is closed: half a connection is one that Python 3.11 forgets to close, or that aiohttp waits for."""
    loop = asyncio.get_running_loop()
    for each in server.sockets:
        loop.remove_reader(each.fileno())
    for _ in range(_TURNS_TO_SERVE):
        await asyncio.sleep(0)
