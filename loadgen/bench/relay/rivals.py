"""Routers and gateways of other projects for language models, each at the settings that its own documentation gives.

`what` of each names the settings. All run in one process on one core, in front of the same engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from loadgen.bench.relay import wire
from loadgen.bench.relay.installed import folder_of, program_of
from loadgen.bench.relay.processes import BenchFailure, Command
from loadgen.bench.relay.setting import HOST, ReadyRelay, Relay, RelaySetting
from loadgen.bench.relay.wire import Likeness
from loadgen.demo.region_files import free_ports

_LAUNCHED = ("smg", "sglang-router")
"""Programs whose router is a command of theirs."""
_LITELLM_KEY = "sk-bench"
_PORTKEY_PACKAGE = "@portkey-ai/gateway"


def router_arguments(path: str, urls: Sequence[str], *, port: int, prometheus: int) -> list[str]:
    """Arguments of smg, sglang-router or vllm-router in front of these engines: their cache-aware policy, else their
    defaults."""
    launch = ["launch"] if Path(path).name in _LAUNCHED else []
    options = ["--host", HOST, "--port", str(port), "--prometheus-port", str(prometheus), "--policy", "cache_aware"]
    return [path, *launch, *options, "--worker-urls", *urls]


def _urls(setting: RelaySetting) -> list[str]:
    return [f"http://{HOST}:{engine}" for engine in setting.engines]


def _prepare_router(program: str) -> Callable[[RelaySetting], ReadyRelay]:
    def prepare(setting: RelaySetting) -> ReadyRelay:
        port, prometheus = free_ports(2, setting.rng)
        path = program_of(setting, program, program)
        arguments = router_arguments(path, _urls(setting), port=port, prometheus=prometheus)
        return ReadyRelay([Command(program, arguments, setting.core)], port)

    return prepare


def with_environment(environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """Command that runs another with further environment variables."""
    return ["/usr/bin/env", *(f"{name}={value}" for name, value in environment.items()), *arguments]


def litellm_file(engines: Sequence[str]) -> dict[str, object]:
    """LiteLLM's configuration: a deployment for each engine, and what its pages on production and on high throughput
    set, less the databases."""
    return {
        "model_list": [
            {
                "model_name": wire.MODEL,
                "litellm_params": {"model": f"openai/{wire.MODEL}", "api_base": f"{url}/v1", "api_key": "none"},
            }
            for url in engines
        ],
        "router_settings": {"routing_strategy": "simple-shuffle"},
        "litellm_settings": {"request_timeout": 600, "set_verbose": False, "json_logs": True},
        "general_settings": {"master_key": _LITELLM_KEY},
    }


_LITELLM_ENVIRONMENT = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "KEEPALIVE_TIMEOUT": "75",
    "REPEATED_STREAMING_CHUNK_LIMIT": "1000000000",
}
"""Environment by LiteLLM's pages; the last one lets the bench's engines say one word again and again, which LiteLLM
takes for a fault of the model."""


def _prepare_litellm(setting: RelaySetting) -> ReadyRelay:
    (port,) = free_ports(1, setting.rng)
    file = setting.folder / "litellm.yaml"
    file.write_text(yaml.safe_dump(litellm_file(_urls(setting)), sort_keys=False))
    options = ["--host", HOST, "--port", str(port), "--config", str(file), "--num_workers", "1"]
    arguments = with_environment(_LITELLM_ENVIRONMENT, [program_of(setting, "litellm", "litellm"), *options])
    return ReadyRelay([Command("litellm", arguments, setting.core)], port, key=_LITELLM_KEY)


def portkey_config(engines: Sequence[str]) -> dict[str, object]:
    """Portkey's configuration, which comes with each request: engines of equal weight, without retries."""
    targets = [{"provider": "openai", "api_key": "none", "custom_host": f"{url}/v1", "weight": 1} for url in engines]
    return {"strategy": {"mode": "loadbalance"}, "targets": targets}


def _prepare_portkey(setting: RelaySetting) -> ReadyRelay:
    (port,) = free_ports(1, setting.rng)
    folder = folder_of(_PORTKEY_PACKAGE, setting.rivals)
    server = folder / "node_modules" / _PORTKEY_PACKAGE / "build/start-server.js"
    if not server.exists():
        raise BenchFailure(f"{server.name} is not in {folder}: `make relays` installs it")
    environment = {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": HOST}
    arguments = with_environment(environment, ["node", str(server), "--headless", f"--port={port}"])
    headers = {"x-portkey-config": json.dumps(portkey_config(_urls(setting)), separators=(",", ":"))}
    return ReadyRelay([Command("portkey", arguments, setting.core)], port, headers=headers)


_CACHE_AWARE = "policy cache_aware, else as it comes"
SMG = Relay(
    "smg",
    f"{_CACHE_AWARE}, as its page on"
    " [load balancing](https://github.com/lightseekorg/smg/blob/main/docs/getting-started/load-balancing.md)"
    " recommends for production; over HTTP it compares prompts as text and takes no tokenizer",
    _prepare_router("smg"),
    "smg",
)
VLLM_ROUTER = Relay(
    "vllm-router",
    f"{_CACHE_AWARE}; this release has no option for a tokenizer",
    _prepare_router("vllm-router"),
    "vllm-router",
)
SGLANG_ROUTER = Relay("sglang-router", _CACHE_AWARE, _prepare_router("sglang-router"), "sglang-router")
LITELLM = Relay(
    "litellm",
    "as [Production Best Practices](https://docs.litellm.ai/docs/proxy/prod) says: one worker a core,"
    " `simple-shuffle`, `LITELLM_LOG=ERROR`, `LITELLM_MODE=PRODUCTION`, JSON logs; a master key, no database, no Redis"
    " and no limit of equal chunks; 20 streams instead of 200",
    _prepare_litellm,
    "litellm",
    Likeness.TEXT,
    fewer_streams=10,
)
PORTKEY = Relay(
    "portkey",
    "its Node.js server as [Deploy](https://github.com/Portkey-AI/gateway/blob/main/docs/installation-deployments.md)"
    " starts it, without the console, with @hono/node-server 1.14.1, since newer releases break its streams; each"
    " request brings a configuration that balances over all engines",
    _prepare_portkey,
    _PORTKEY_PACKAGE,
    Likeness.TEXT,
)
