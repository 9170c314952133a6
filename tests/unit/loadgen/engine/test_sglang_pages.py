from __future__ import annotations

from dataclasses import replace

import aiohttp

from gateway.core.vocabulary import Connector, ReplicaRole
from gateway.engines.handoff.bootstrap import bootstrap_of, read_server_info
from loadgen.engine.handoff import HandoffConfig
from loadgen.engine.presets import TINY
from loadgen.engine.server import EngineServerConfig, serve_engines

CONFIG = EngineServerConfig("m", TINY, handoff=HandoffConfig(Connector.SGLANG, ReplicaRole.PREFILL), ranks=2)


async def test_a_prefill_worker_says_where_its_bootstrap_server_is() -> None:
    async with serve_engines([CONFIG]) as (server,), aiohttp.ClientSession(server.url) as http:
        async with http.get("/server_info") as response:
            told = read_server_info(await response.read(), bootstrap_of(server.url))

    assert f"http://{told.host}:{told.port}" == server.url
    assert told.ranks == 2


async def test_loads_and_metrics_are_told_by_rank_in_its_own_words() -> None:
    async with serve_engines([CONFIG]) as (server,), aiohttp.ClientSession(server.url) as http:
        async with http.get("/v1/loads") as response:
            loads = await response.json()
        async with http.get("/metrics") as response:
            lines = (await response.text()).splitlines()

    assert [each["dp_rank"] for each in loads["loads"]] == [0, 1]
    assert loads["loads"][0]["disaggregation"]["mode"] == "prefill"
    labels = 'engine_type="prefill",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    assert f'sglang:num_queue_reqs{{dp_rank="1",{labels}}} 0.0' in lines
    assert f'sglang:max_total_num_tokens{{dp_rank="0",{labels}}} {float(TINY.kv_tokens)}' in lines


async def test_an_engine_of_one_rank_names_none() -> None:
    async with serve_engines([replace(CONFIG, ranks=1)]) as (server,), aiohttp.ClientSession(server.url) as http:
        async with http.get("/metrics") as response:
            assert "dp_rank" not in await response.text()
