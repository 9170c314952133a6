"""A small real server with the pages on which engines report their state, shaped as those of real engines."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.fakes.engine import GOOD_ANSWER, Tally
from tests.support.certificates import Files
from tests.support.listening import serving_http

VLLM_CACHE_CONFIG = (
    b'vllm:cache_config_info{_block_size_resolved="True",block_size="32",cache_dtype="auto",'
    b'cache_hit_alignment_tokens="None",effective_attention_block_size="32",'
    b'enable_mamba_shared_prefix_checkpoint="False",enable_prefix_caching="True",engine="0",'
    b'gpu_memory_utilization="0.92",hash_block_size="None",is_attention_free="False",kv_cache_dtype_skip_layers="[]",'
    b'kv_cache_layout="None",kv_cache_max_concurrency="2.0",kv_cache_memory_bytes="1073741824",'
    b'kv_cache_size_tokens="4096",kv_offloading_backend="native",kv_offloading_size="None",kv_sharing_fast_prefill="False",'
    b'mamba_block_size="None",mamba_cache_dtype="auto",mamba_cache_mode="none",mamba_page_size_padded="None",'
    b'mamba_ssm_cache_dtype="auto",num_cpu_blocks="None",num_gpu_blocks="128",num_gpu_blocks_override="128",'
    b'prefix_cache_retention_interval="0",prefix_caching_hash_algo="sha256",prefix_match_unit="None",'
    b'replayssm_buffer_len="16",skip_page_size_padded="None",sliding_window="None",swa_bounded_replay="True",'
    b'use_kda_recoverssm="False",use_replayssm="False",user_specified_block_size="True"} 1.0\n'
)
"""Page of vLLM 0.33: 4,096 tokens."""


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes = b""
    status: int = 200


HANGS = Page(status=0)
"""Page whose request is accepted and never answered."""
NOT_THERE = Page(b'{"detail":"Not Found"}', 404)
NO_METRICS = Page(b'{"error":{"code":501,"message":"This server does not support metrics endpoint.","type":"x"}}', 501)
LOADING = Page(b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}', 503)


@dataclass
class PagesEngine:
    """Server that answers GETs from `pages`, or with 404; POSTs get `answers` in order, then the last one again and
    again.
    """

    pages: dict[str, Page] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)
    keys: list[str] = field(default_factory=list)
    answers: list[Page] = field(default_factory=lambda: [Page(GOOD_ANSWER)])
    received: list[dict[str, str]] = field(default_factory=list)
    """Headers of each POST."""
    url: str = ""

    @asynccontextmanager
    async def serving(self, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[PagesEngine]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        app.router.add_post("/{path:.*}", self._generate)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        async with serving_http(runner, tls=tls) as port:
            self.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
            yield self

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked[request.path] += 1
        self.tally.add()
        self.keys.append(request.headers.get("authorization", ""))
        page = self.pages.get(request.path, NOT_THERE)
        if page is HANGS:
            await asyncio.Event().wait()
        return web.Response(body=page.body, status=page.status)

    async def _generate(self, request: web.Request) -> web.Response:
        await request.read()
        self.received.append(_headers_of(request))
        page = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if page is HANGS:
            await asyncio.Event().wait()
        return web.Response(body=page.body, status=page.status, content_type="application/json")


def server_context(files: Files, *, asks_for_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    if asks_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.roots)
    return context


def _headers_of(request: web.Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


def vllm_page(*ranks: tuple[int, int], asleep: str = "", first_rank: int = 0) -> Page:
    """Metrics page with vLLM's lines about (running, waiting) of each rank, between others that look alike."""
    lines = ["# HELP vllm:num_requests_running Number of requests in model execution batches."]
    for rank, (running, waiting) in enumerate(ranks, start=first_rank):
        labels = f'engine="{rank}",model_name="tiny-qwen2"'
        lines += [
            f"vllm:num_requests_running{{{labels}}} {running}.0",
            f"vllm:num_requests_waiting{{{labels}}} {waiting}.0",
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 777.0',
            f"vllm:kv_cache_usage_perc{{{labels}}} 0.{rank + 1}",
            f"vllm:prefix_cache_queries_created{{{labels}}} 1.7952422058784962e+09",
        ]
        for state in ("awake", "weights_offloaded", "discard_all"):
            value = float(state == (asleep or "awake"))
            lines.append(f'vllm:engine_sleep_state{{{labels},sleep_state="{state}"}} {value}')
    return Page("\n".join([*lines, ""]).encode())


def sglang_loads(*ranks: tuple[int, int], room: object = 183_000) -> Page:
    loads = [
        {
            "timestamp": 1795241000.1,
            "dp_rank": rank,
            "num_running_reqs": running,
            "num_waiting_reqs": waiting,
            "num_used_tokens": 51234,
            "max_total_num_tokens": room,
            "token_usage": 0.28,
            "queues": {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0},
        }
        for rank, (running, waiting) in enumerate(ranks)
    ]
    return Page(json.dumps({"timestamp": "2026-11-21T06:00:00+00:00", "version": "0.5.23", "loads": loads}).encode())


def llama_metrics(processing: int, deferred: int) -> Page:
    return Page(
        f"# HELP llamacpp:requests_processing Number of requests processing\n"
        f"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing {processing}\n"
        f"# HELP llamacpp:requests_deferred Number of requests deferred\n"
        f"# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred {deferred}\n".encode()
    )


def llama_slots(*processing: bool, context: object = 2048) -> Page:
    slots = [{"id": number, "n_ctx": context, "is_processing": each} for number, each in enumerate(processing)]
    return Page(json.dumps(slots).encode())


def model_list(*models: str, adapters: dict[str, str] | None = None) -> Page:
    """List of models in vLLM's form, in which adapters name their parent."""
    entries = [{"id": name, "object": "model", "root": name, "parent": None} for name in models]
    entries += [
        {"id": name, "object": "model", "root": f"/adapters/{name}", "parent": parent}
        for name, parent in (adapters or {}).items()
    ]
    return Page(json.dumps({"object": "list", "data": entries}).encode())
