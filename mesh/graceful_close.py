"""Prepares the closing of a stream server so that it loses no accepted connection: Python 3.11 forgets such
connections.

It opens no socket and answers no client.
"""

from __future__ import annotations

import asyncio

_TURNS_TO_SERVE = 3
"""Turns of the event loop until an accepted connection is served: one for its transport, one for its protocol, one for
its task."""


async def deliver_accepted(server: asyncio.Server) -> None:
    """Stop accepting, and let every accepted connection reach its task. Call it before the server is closed: Python
    3.11 forgets to close a connection that is half set up, and aiohttp waits for it."""
    loop = asyncio.get_running_loop()
    for each in server.sockets:
        loop.remove_reader(each.fileno())
    for _ in range(_TURNS_TO_SERVE):
        await asyncio.sleep(0)
