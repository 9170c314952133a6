"""The HTTP face of emulated engines: vLLM's API over engine models, many engines in one process, one port each.

It answers what a router and its clients ask of a real engine, no more. Closing the connection aborts a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.ground.clock import Clock
from loadgen.engine.api_answers import ENGINE_VERSION, encode
from loadgen.engine.driver import EngineDriver
from loadgen.engine.exposition import CONTENT_TYPE, Exposition
from loadgen.engine.faults import Fault, FaultMode, FaultSwitch
from loadgen.engine.fields import ApiError
from loadgen.engine.generation import Generation, reset_connection
from loadgen.engine.model import EngineLoad, EngineModel
from loadgen.engine.server_config import EngineServerConfig
from loadgen.engine.tokenizer import detokenize, tokenize

__all__ = ["EngineServer", "EngineServerConfig", "serve_engines"]

_SCALE_OUT_DISABLED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
_NOBODY_READS_THIS = 499
_GARBAGE = b"\x00\xff{{{ vllm:num_requests_waiting{ ??? \n"


@asynccontextmanager
async def serve_engines(
    configs: Sequence[EngineServerConfig], clock: Clock | None = None
) -> AsyncIterator[list[EngineServer]]:
    """Serve these engines while the context is open; leaving it stops them as SIGTERM stops a real one."""
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        servers = []
        for config in configs:
            server = EngineServer(config, clock or Clock())
            stack.callback(tasks.create_task(server.run_model()).cancel)
            stack.push_async_callback(server.stop)
            await server.start()
            servers.append(server)
        yield servers


class EngineServer:
    """One engine on one port. `serve_engines` starts and stops it."""

    def __init__(self, config: EngineServerConfig, clock: Clock) -> None:
        created = datetime.fromisoformat(clock.wall_time()).timestamp()
        model = EngineModel(replace(config.engine, stream_every_iteration=True))
        self._config = config
        self._created = int(created)
        self._driver = EngineDriver(model, clock, time_scale=config.time_scale)
        self._exposition = Exposition(config.model, config.engine, created)
        self._faults = FaultSwitch()
        self._generation = Generation(config, self._driver, self._faults, clock)
        self._runner = web.AppRunner(
            self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=config.shutdown_timeout_s
        )

    @property
    def config(self) -> EngineServerConfig:
        return self._config

    @property
    def url(self) -> str:
        host, port = self._runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def load(self) -> EngineLoad:
        return self._driver.load()

    def set_fault(self, fault: Fault) -> None:
        """For whoever runs the engine in its own process, as tests do; others `POST /faults`."""
        self._faults.turn_to(fault)

    async def run_model(self) -> None:
        await self._driver.run()

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, self._config.host, self._config.port).start()

    async def stop(self) -> None:
        """Stop listening; running answers end with finish reason `abort`."""
        await self._runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[_guard(self._faults)], client_max_size=self._config.body_bytes_max)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._generation.chat),
                web.post("/v1/completions", self._generation.completion),
                web.post("/v1/responses", self._generation.responses),
                web.get("/v1/responses/{id}", self._generation.show_response),
                web.delete("/v1/responses/{id}", self._generation.delete_response),
                web.post("/v1/responses/{id}/cancel", self._generation.cancel_response),
                web.post("/v1/messages", self._generation.messages),
                web.post("/v1/messages/count_tokens", self._generation.count_tokens),
                web.post("/v1/embeddings", self._generation.embeddings),
                *(web.post(path, self._generation.rerank) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
                *(web.post(path, self._generation.score) for path in ("/score", "/v1/score")),
                *(web.post(f"/v1/{path}/render", self._scale_out) for path in ("chat/completions", "completions")),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.post("/ping", self._health),
                web.get("/version", self._version),
                web.get("/load", self._server_load),
                web.get("/metrics", self._metrics),
            ]
        )
        if self._config.faults:
            app.router.add_post("/faults", self._order_fault)
        app.on_shutdown.append(self._close)
        return app

    async def _close(self, _app: web.Application) -> None:
        self._generation.close()

    async def _models(self, _http: web.Request) -> web.Response:
        adapters = [self._model_card(name, parent=self._config.model) for name in self._config.adapters]
        return _json({"object": "list", "data": [self._model_card(self._config.model, parent=None), *adapters]})

    def _model_card(self, name: str, *, parent: str | None) -> dict[str, Any]:
        permission = {
            "id": f"modelperm-{uuid4().hex[:16]}",
            "object": "model_permission",
            "created": self._created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": self._config.engine.context_tokens_max if parent is None else None,
            "permission": [permission],
        }

    async def _health(self, _http: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _http: web.Request) -> web.Response:
        return _json({"version": ENGINE_VERSION})

    async def _tokenize(self, http: web.Request) -> web.Response:
        served, context = self._config.served, self._config.engine.context_tokens_max
        return _json(tokenize(http.content_type, await http.read(), served, context))

    async def _detokenize(self, http: web.Request) -> web.Response:
        return _json(detokenize(http.content_type, await http.read(), self._config.served))

    async def _scale_out(self, _http: web.Request) -> web.Response:
        """Some routers ask for a prompt's tokens first; vLLM does not tell unless it was started to."""
        raise ApiError(403, "PermissionDeniedError", _SCALE_OUT_DISABLED)

    async def _server_load(self, _http: web.Request) -> web.Response:
        return _json({"server_load": self._generation.in_flight})

    async def _metrics(self, _http: web.Request) -> web.Response:
        fault = self._faults.strike(FaultMode.GARBAGE_METRICS, FaultMode.SLOW_METRICS)
        if fault is not None and fault.mode is FaultMode.GARBAGE_METRICS:
            return web.Response(body=_GARBAGE, headers={"Content-Type": CONTENT_TYPE})
        if fault is not None:
            await self._generation.closed_within(fault.delay_s)
        body = self._exposition.render(self._driver.load(), self._driver.metrics)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _order_fault(self, http: web.Request) -> web.Response:
        try:
            fault = msgspec.json.decode(await http.read(), type=Fault)
        except msgspec.DecodeError as error:
            raise ApiError(400, "BadRequestError", str(error)) from None
        self._faults.turn_to(fault)
        return _json(fault)


def _guard(faults: FaultSwitch) -> Middleware:
    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Give every error the body that vLLM gives it."""
        if request.path != "/faults" and faults.strike(FaultMode.REFUSE) is not None:
            await reset_connection(request)
        try:
            return await handler(request)
        except ApiError as error:
            return _error(request, error)
        except web.HTTPException as error:
            return _error(request, ApiError(error.status, error.reason, error.reason))
        except ConnectionResetError:
            return web.Response(status=_NOBODY_READS_THIS)

    return guard


def _error(request: web.Request, error: ApiError) -> web.Response:
    is_of_messages = request.path.startswith("/v1/messages")
    return _json(error.messages_content() if is_of_messages else error.content(), error.status)


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=encode(content), status=status, content_type="application/json")
