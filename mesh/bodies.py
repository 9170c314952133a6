"""Bodies of HTTP answers, read whole up to a bound."""

from __future__ import annotations

import aiohttp


class BodyTooLarge(ValueError):
    """The body is larger than its reader takes; the message says how much that is."""


async def read_body(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Whole body, in however many segments it comes and whatever length its header gives. Raises BodyTooLarge, and what
    aiohttp raises as the connection breaks."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > bytes_max:
            raise BodyTooLarge(f"the answer is larger than {bytes_max >> 10} KiB")
    return bytes(body)
