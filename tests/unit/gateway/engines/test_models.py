from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.config.sections import ProbeConfig
from gateway.config.targets import Dialect
from gateway.core.vocabulary import GatewayId, ModelName, ReplicaId, Roots
from gateway.engines.endpoints import ReplicaEndpoint, ReplicaEndpoints
from gateway.engines.exposition import BadProbe
from gateway.engines.models import ModelWatcher, checked_models, identities_of, routable
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from tests.fakes.engine import Tally
from tests.fakes.engine_pages import Page, PagesEngine, model_list
from tests.support.background import in_background
from tests.support.core import MS, US

QUICK = ProbeConfig(models_interval_ns=5 * MS, models_max=4)


class Heard:
    def __init__(self) -> None:
        self.lists: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.identities: list[tuple[tuple[str, ...], Roots]] = []
        self.tally = Tally()

    def on_listed(self, replicas: tuple[ReplicaId, ...], models: tuple[ModelName, ...]) -> None:
        self.lists.append((replicas, models))
        self.tally.add()

    def on_identified(self, replicas: tuple[ReplicaId, ...], roots: Roots) -> None:
        self.identities.append((replicas, roots))
        self.tally.add()

    async def until(self, models: tuple[str, ...]) -> None:
        while not self.lists or self.lists[-1][1] != models:
            await self.tally.reaches(self.tally.count + 1)


def endpoint(name: str, url: str, *, lists_models: bool = True) -> ReplicaEndpoint:
    return ReplicaEndpoint(ReplicaId(name), US, url, Dialect.VLLM, lists_models=lists_models)


@asynccontextmanager
async def watching(endpoints: Iterable[ReplicaEndpoint]) -> AsyncIterator[tuple[Heard, ReplicaEndpoints, ModelWatcher]]:
    heard, followed = Heard(), ReplicaEndpoints(endpoints)
    log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("g"))
    watcher = ModelWatcher(followed, Clock(), QUICK, heard.on_listed, heard.on_identified, log=log)
    async with in_background(watcher.run()):
        yield heard, followed, watcher


@pytest.fixture
async def engine() -> AsyncIterator[PagesEngine]:
    async with PagesEngine().serving() as engine:
        yield engine


async def test_what_an_engine_lists_is_told_for_all_its_replicas(engine: PagesEngine) -> None:
    engine.pages = {"/v1/models": model_list("qwen", adapters={"support-de": "qwen"})}
    ranks = [replace(endpoint(f"a@{rank}", engine.url), ranks=2, rank=rank) for rank in (0, 1)]
    async with watching(ranks) as (heard, _, _):
        await heard.until(("qwen", "support-de"))
    assert heard.lists[0] == (("a@0", "a@1"), ("qwen", "support-de"))


async def test_changes_are_seen(engine: PagesEngine) -> None:
    engine.pages = {"/v1/models": model_list("qwen")}
    async with watching([endpoint("a", engine.url)]) as (heard, _, _):
        await heard.until(("qwen",))
        engine.pages = {"/v1/models": model_list("qwen", adapters={"new": "qwen"})}
        await heard.until(("qwen", "new"))


@pytest.mark.parametrize("page", [Page(status=500), Page(b"<html>"), model_list(), model_list("a b")])
async def test_what_cannot_be_used_changes_nothing(engine: PagesEngine, page: Page) -> None:
    engine.pages = {"/v1/models": model_list("qwen")}
    async with watching([endpoint("a", engine.url)]) as (heard, _, _):
        await heard.until(("qwen",))
        engine.pages = {"/v1/models": page}
        before = engine.tally.count
        await engine.tally.reaches(before + 3)
        told = len(heard.lists)
        await engine.tally.reaches(before + 6)
        assert len(heard.lists) <= told + 1  # one may have been in flight
        assert {models for _, models in heard.lists} == {("qwen",)}


async def test_engines_whose_models_are_configured_are_not_asked(engine: PagesEngine) -> None:
    engine.pages = {"/v1/models": model_list("qwen")}
    async with watching([endpoint("a", engine.url, lists_models=False)]) as (heard, followed, watcher):
        await watcher.first_round()
        assert engine.asked["/v1/models"] == 0
        followed.replace([endpoint("a", engine.url)])
        await heard.until(("qwen",))


async def test_the_first_round_is_over_when_everybody_was_asked(engine: PagesEngine) -> None:
    engine.pages = {"/v1/models": model_list("qwen")}
    async with watching([endpoint("a", engine.url), endpoint("b", "http://127.0.0.1:1")]) as (heard, _, watcher):
        await watcher.first_round()
        assert next(replicas for replicas, _ in heard.lists) == ("a",)


def test_only_lists_that_can_be_routed_by_are_believed() -> None:
    assert routable(checked_models(model_list("a", "b", "a").body, 4)) == ("a", "b")
    with pytest.raises(BadProbe, match="5 models are listed"):
        checked_models(model_list(*"abcde").body, 4)
    with pytest.raises(BadProbe, match="no usable name"):
        checked_models(model_list("a", "x" * 300).body, 4)


async def test_an_engine_without_a_declared_identity_is_asked_for_it(engine: PagesEngine) -> None:
    engine.pages = {"/v1/models": model_list("qwen", adapters={"support-de": "qwen"})}
    asking = replace(endpoint("a", engine.url, lists_models=False), asks_identity=True)
    async with watching([asking]) as (heard, _, watcher):
        await watcher.first_round()
        await heard.tally.reaches(1)
    assert heard.identities[0] == (("a",), {"qwen": "qwen", "support-de": "qwen /adapters/support-de"})
    assert not heard.lists


@pytest.mark.parametrize("root", ["null", "7", '""', json.dumps("x" * 257), json.dumps("é" * 129), '"a\\nb"'])
def test_a_root_that_no_region_file_could_declare_is_unknown(root: str) -> None:
    page = b'{"data": [{"id": "qwen", "root": %b}]}' % root.encode()
    assert identities_of(checked_models(page, 4)) == {}


def test_an_adapter_is_unknown_while_its_base_is() -> None:
    page = b'{"data": [{"id": "qwen"}, {"id": "de", "root": "/de", "parent": "qwen"}]}'
    assert identities_of(checked_models(page, 4)) == {}
