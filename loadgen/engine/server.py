"""HTTP server of emulated engines: vLLM's API over engine models, many engines in one process, one port each.

It answers only what a router and its clients ask of a real engine. Closing the connection aborts a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.core.vocabulary import Connector
from loadgen.engine.api_answers import ENGINE_VERSION, encode
from loadgen.engine.blocks import NamesChange
from loadgen.engine.consumer import Consumer
from loadgen.engine.decode_group import Steps
from loadgen.engine.driver import EngineDriver
from loadgen.engine.exposition import CONTENT_TYPE, Exposition
from loadgen.engine.faults import EngineFault, FaultMode, FaultSwitch
from loadgen.engine.fields import ApiError
from loadgen.engine.generation import Generation, reset_connection
from loadgen.engine.kv_publisher import KvEventPublisher
from loadgen.engine.model import EngineLoad
from loadgen.engine.producer import Producer
from loadgen.engine.ranks import Ranks
from loadgen.engine.server_config import EngineServerConfig
from loadgen.engine.sglang_pages import loads_page, metrics_page, server_info
from loadgen.engine.step_trace import StepTrace
from loadgen.engine.tokenizer import detokenize, tokenize
from mesh.clock import Clock

__all__ = ["EngineServer", "EngineServerConfig", "serve_engines"]

_SCALE_OUT_DISABLED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
_CLIENT_CLOSED_REQUEST = 499
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


@dataclass(frozen=True, slots=True)
class Books:
    """Present state of one engine, all ranks together, followed by counters."""

    in_flight: int
    """HTTP requests for tokens in progress."""
    running: int
    waiting: int
    deferred: int
    kept: int
    """Prompts computed here whose KV caches are kept for decode workers."""
    blocks_held: int
    offered: int
    """Prompts that a decode worker may ask for, computed or not."""
    wanted: int
    """Prompts whose KV caches are to be fetched."""
    leases_expired: int
    heartbeats: int
    """Keys in renewals by decode workers."""
    late_notifications: int
    stale_reads: int
    differing_prompts: int

    @property
    def is_empty(self) -> bool:
        left = self.in_flight, self.running, self.waiting, self.deferred, self.kept, self.blocks_held
        return not any((*left, self.offered, self.wanted))


class EngineServer:
    """One engine on one port. `serve_engines` starts and stops it."""

    def __init__(self, config: EngineServerConfig, clock: Clock) -> None:
        created = datetime.fromisoformat(clock.wall_time()).timestamp()
        on_steps = None if config.step_trace is None else self._told
        tells_cache = config.kv_events_ports is not None
        sized = replace(config.engine, stream_every_iteration=True, tells_cache=tells_cache)
        ranks = Ranks(sized, config.ranks, config.kv_token_ns, on_steps)
        self._config = config
        self._clock = clock
        self._created = int(created)
        self._driver = EngineDriver(ranks, clock, time_scale=config.time_scale)
        self._exposition = Exposition(config.model, config.engine, created, is_of_nixl=_is_of_nixl(config))
        self._faults = FaultSwitch()
        self._producer, self._consumer = self._sides()
        self._generation = Generation(
            config,
            self._driver,
            self._faults,
            clock,
            producer=self._producer,
            consumer=self._consumer,
            die=self.die,
        )
        self._driver.on_gone = self._generation.forget
        self.kv_publishers = self._publishers()
        self._step_trace: StepTrace | None = None
        self._url = ""
        self._dies = asyncio.Event()
        self.died = asyncio.Event()
        """Set when the engine has died, as a real engine's server process exits with all that ran in it."""
        self.why_dead = ""
        self._runner = web.AppRunner(
            self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=config.shutdown_timeout_s
        )

    @property
    def config(self) -> EngineServerConfig:
        return self._config

    @property
    def url(self) -> str:
        assert self._url, "it has not been started"
        return self._url

    @property
    def kv_events_ports(self) -> tuple[int, int]:
        """Ports of the first rank's KV events."""
        return self.kv_publishers[0].ports

    def load(self) -> EngineLoad:
        return self._driver.load()

    def loads(self) -> list[EngineLoad]:
        """Gauges and counters by rank."""
        return self._driver.loads()

    def books(self) -> Books:
        """State and counters of this engine, for checks that nothing is left over."""
        loads = self._driver.loads()
        producer, consumer = self._producer, self._consumer
        return Books(
            in_flight=self._generation.in_flight,
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting + load.arriving for load in loads),
            deferred=sum(load.deferred for load in loads),
            kept=sum(load.kept for load in loads),
            blocks_held=sum(load.blocks_held for load in loads),
            offered=0 if producer is None else len(producer),
            wanted=0 if consumer is None else len(consumer),
            leases_expired=sum(load.leases_expired for load in loads),
            heartbeats=0 if producer is None else producer.heartbeats,
            late_notifications=0 if producer is None else producer.late_notifications,
            stale_reads=0 if consumer is None else consumer.stale_reads,
            differing_prompts=0 if consumer is None else consumer.differing_prompts,
        )

    def set_fault(self, fault: EngineFault) -> None:
        """Set the fault, for a program that runs the engine in its own process, such as a test; others `POST
        /faults`."""
        self._faults.turn_to(fault)

    async def run_model(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._consumer is not None:
                tasks.create_task(self._consumer.run())
            tasks.create_task(self._driver.run())
            tasks.create_task(self._exit_when_dead())

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, self._config.host, self._config.port).start()
        host, port = self._runner.addresses[0][:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        for rank, publisher in enumerate(self.kv_publishers):
            ports = self._config.kv_events_ports or (0, 0)
            await publisher.start(*[each + rank if each else 0 for each in ports])
        if self._config.step_trace is not None:
            self._step_trace = StepTrace(self._config.step_trace, self._config.ranks, name=f"steps-{port}")
        handoff = self._config.handoff
        if handoff is not None and handoff.bootstrap_port:
            await web.TCPSite(self._runner, self._config.host, handoff.bootstrap_port).start()

    async def stop(self) -> None:
        """Stop listening; running answers end with finish reason `abort`."""
        await self._runner.cleanup()
        for publisher in self.kv_publishers:
            await publisher.stop()
        if self._step_trace is not None:
            self._step_trace.close()
            self._step_trace = None

    def _told(self, steps: Steps) -> None:
        if self._step_trace is not None:
            self._step_trace.add(steps)

    def _publishers(self) -> list[KvEventPublisher]:
        config = self._config
        if config.kv_events_ports is None:
            return []
        topic = f"kv@{config.host}@{config.model}".encode()
        publishers = [
            KvEventPublisher(config.host, config.engine.block_tokens, rank, topic) for rank in range(config.ranks)
        ]

        def publish(rank: int, changes: list[NamesChange]) -> None:
            publishers[rank].publish(datetime.fromisoformat(self._clock.wall_time()).timestamp(), changes)

        self._driver.on_cache = publish
        return publishers

    def _sides(self) -> tuple[Producer | None, Consumer | None]:
        config, handoff = self._config, self._config.handoff
        if handoff is None:
            return None, None
        producer = Producer(handoff, self._driver, ranks=config.ranks, time_scale=config.time_scale)
        consumer = Consumer(
            handoff,
            self._driver,
            block_tokens=config.engine.block_tokens,
            time_scale=config.time_scale,
            die=self.die,
        )
        self._driver.on_fetching = consumer.fetch
        return producer, consumer

    def die(self, why: str) -> None:
        """Die, as a real engine's process does: nothing listens any more, and what runs gets no answer."""
        self.why_dead = self.why_dead or why
        self._dies.set()

    async def _exit_when_dead(self) -> None:
        """Stop listening and reset every connection once the engine dies; pending requests get no answer."""
        await self._dies.wait()
        for site in list(self._runner.sites):
            await site.stop()
        server = self._runner.server
        for connection in [] if server is None else server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        self.died.set()

    def _app(self) -> web.Application:
        app = web.Application(
            middlewares=[_guard(self._faults, is_flat=self._is_sglang)], client_max_size=self._config.body_bytes_max
        )
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
                web.get("/kv_event_sources", self._kv_event_sources),
            ]
        )
        if self._producer is not None:
            app.add_routes([*self._producer.routes(), web.get("/emulated/books", self._show_books)])
        if self._is_sglang:
            app.add_routes([web.get("/server_info", self._server_info), web.get("/v1/loads", self._show_loads)])
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
        """Refusal of the render endpoints, which some routers call first; vLLM enables them only with
        --enable-scale-out."""
        raise ApiError(403, "PermissionDeniedError", _SCALE_OUT_DISABLED)

    async def _server_load(self, _http: web.Request) -> web.Response:
        return _json({"server_load": self._generation.in_flight})

    async def _metrics(self, _http: web.Request) -> web.Response:
        fault = self._faults.strike(FaultMode.GARBAGE_METRICS, FaultMode.SLOW_METRICS)
        if fault is not None and fault.mode is FaultMode.GARBAGE_METRICS:
            return web.Response(body=_GARBAGE, headers={"Content-Type": CONTENT_TYPE})
        if fault is not None:
            await self._generation.closed_within(fault.delay_s)
        handoff = self._config.handoff
        if handoff is not None and handoff.connector is Connector.SGLANG:
            room = self._config.engine.kv_tokens
            page = metrics_page(handoff.role, self._config.model, self._driver.loads(), kv_tokens=room)
            return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})
        if self._producer is not None:
            self._exposition.late_notifications = self._producer.late_notifications
        body = self._exposition.render(*zip(self._driver.loads(), self._driver.metrics, strict=True))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    @property
    def _is_sglang(self) -> bool:
        return self._config.handoff is not None and self._config.handoff.connector is Connector.SGLANG

    async def _server_info(self, http: web.Request) -> web.Response:
        handoff, config = self._config.handoff, self._config
        assert handoff is not None
        port = handoff.bootstrap_port or http.url.port or 0
        page_tokens = config.engine.block_tokens
        return _json(server_info(handoff.role, bootstrap_port=port, ranks=config.ranks, page_tokens=page_tokens))

    async def _show_loads(self, _http: web.Request) -> web.Response:
        handoff = self._config.handoff
        assert handoff is not None
        room, now = self._config.engine.kv_tokens, self._clock.wall_time()
        return _json(loads_page(handoff.role, self._driver.loads(), kv_tokens=room, timestamp=now))

    async def _kv_event_sources(self, _http: web.Request) -> web.Response:
        return _json({str(rank): publisher.describe() for rank, publisher in enumerate(self.kv_publishers)})

    async def _show_books(self, _http: web.Request) -> web.Response:
        return _json(self.books())

    async def _order_fault(self, http: web.Request) -> web.Response:
        try:
            fault = msgspec.json.decode(await http.read(), type=EngineFault)
        except msgspec.DecodeError as error:
            raise ApiError(400, "BadRequestError", str(error)) from None
        self._faults.turn_to(fault)
        return _json(fault)


def _is_of_nixl(config: EngineServerConfig) -> bool:
    return config.handoff is not None and config.handoff.connector is Connector.NIXL


def _guard(faults: FaultSwitch, *, is_flat: bool) -> Middleware:
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
            return _error(request, error, is_flat=is_flat)
        except web.HTTPException as error:
            return _error(request, ApiError(error.status, error.reason, error.reason), is_flat=is_flat)
        except ConnectionResetError:
            return web.Response(status=_CLIENT_CLOSED_REQUEST)

    return guard


def _error(request: web.Request, error: ApiError, *, is_flat: bool) -> web.Response:
    if is_flat:
        return _json({"object": "error"} | error.content()["error"], error.status)
    is_of_messages = request.path.startswith("/v1/messages")
    return _json(error.messages_content() if is_of_messages else error.content(), error.status)


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=encode(content), status=status, content_type="application/json")
