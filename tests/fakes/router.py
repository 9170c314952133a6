"""A third-party router with the options that such routers have, and round robin as its only policy: a program of its
own.

`router.py --host HOST --port PORT --prometheus-port PORT --policy NAME --worker-urls URL ...`
"""

from __future__ import annotations

import argparse
from itertools import cycle

import aiohttp
from aiohttp import web


def application(workers: list[str]) -> web.Application:
    turns = cycle(workers)

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ready")

    async def passed_on(request: web.Request) -> web.StreamResponse:
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                next(turns) + request.path, data=await request.read(), headers={"Content-Type": request.content_type}
            ) as answer,
        ):
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            return response

    app = web.Application()
    app.add_routes([web.get("/readiness", ready), web.post("/v1/chat/completions", passed_on)])
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--prometheus-port", required=True, type=int)
    parser.add_argument("--policy", required=True, choices=["cache_aware"])
    parser.add_argument("--worker-urls", required=True, nargs="+")
    asked = parser.parse_args()
    web.run_app(application(asked.worker_urls), host=asked.host, port=asked.port, print=None)
