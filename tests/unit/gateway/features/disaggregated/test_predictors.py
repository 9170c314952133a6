from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from gateway.app.observed_core import ObservedCore
from gateway.config.orders import Orders
from gateway.config.sections import ControlConfig, GatewayConfig, StateConfig
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.features.disaggregated.predictors.arrays import PredictorKind
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.kernel.events import AssignmentApplied
from gateway.core.vocabulary import GatewayId, PoolName, ReplicaSpec, RequestId
from gateway.features.disaggregated.config import PredictionConfig
from gateway.features.disaggregated.extension import DisaggregatedExtension
from gateway.features.disaggregated.files import read_history, write_history
from gateway.features.disaggregated.handing_over import with_arrived
from gateway.features.disaggregated.predictors import Predictors, PromptKeys
from gateway.features.sections import PoolSections
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.logs import make_logger
from mesh.supervisor import OwnedLoops, Supervisor
from mesh.values import Address
from tests.support.core import US, profile
from tests.support.disaggregated import POOL, workers
from tests.support.gateways import region_config, until, write_policy
from tests.support.histories import history_of

LONG = profile("a", prompt="hello " * 100)


def keys(folder: Path | None, stream: io.StringIO | None = None) -> PromptKeys:
    config: GatewayConfig = region_config("us-1", US, (), policy_file=Path("policy.yaml"))
    log = make_logger(LoggingConfig(format=LogFormat.JSON), GatewayId("us-1"), stream or io.StringIO())
    return PromptKeys(replace(config, state=StateConfig(folder)), log)


def test_a_prompt_has_the_same_key_after_a_restart_and_another_one_elsewhere(tmp_path: Path) -> None:
    key = keys(tmp_path).of(LONG)
    assert len(key) == 8
    assert keys(tmp_path).of(LONG) == key
    assert keys(None).of(LONG) != key
    assert keys(tmp_path).of(profile("b", prompt="other " * 100)) != key
    assert keys(tmp_path).of(profile("b", prompt="hi")) == b"", "nothing tells it apart"


def test_the_secret_is_in_a_file_of_its_own(tmp_path: Path) -> None:
    keys(tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == "us-1.prompts.secret.json"
    assert path.stat().st_mode & 0o007 == 0, "nobody else may read it"


@pytest.mark.parametrize("damage", [b"{", b'{"kind":"decode secret","version":2,"checksum":"","content":{}}'])
def test_a_damaged_secret_is_told_and_another_one_used(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "us-1.prompts.secret.json").write_bytes(damage)
    stream = io.StringIO()
    assert len(keys(tmp_path, stream).of(LONG)) == 8
    assert '"level":"error"' in stream.getvalue().replace(": ", ":")


async def test_a_history_is_kept_from_before_its_pool_is_there_until_after_it_has_gone_and_come(tmp_path: Path) -> None:
    path = tmp_path / f"us-1.{POOL.name}.history.json"
    write_history(path, Snapshot((Ended(3, 10, 7, 0, 0),), 1), 0)
    config = replace(
        region_config("us-1", US, (), policy_file=write_policy(tmp_path, US)),
        state=StateConfig(tmp_path),
    )
    stream = io.StringIO()
    desk = ObservedCore(config, Clock(), make_logger(LoggingConfig(format=LogFormat.JSON), config.gateway_id, stream))
    async with Supervisor(desk.clock, desk.loop_failed) as loops:
        tenure = OwnedLoops(loops, desk.clock, desk.loop_failed)
        tenure.begin()
        predictors = Predictors(config, desk, tenure)
        prediction = PredictionConfig(kind=PredictorKind.SURVIVAL, requests_min=1)
        spec = replace(POOL, features=PoolSections(prediction=prediction).texts())
        predictors.follow((spec,))
        assert decode_pools_of(desk.core).history_of(POOL.name) is None, "files are read off the event loop"
        await until(lambda: predictors.refits() == [(POOL.name, 1, 0)])
        assert decode_pools_of(desk.core).get(POOL.name) is None
        for version, output in ((1, 8), (2, 0), (3, 9)):
            there = bool(output)
            pools = (spec,) if there else ()
            desk.driver.submit(AssignmentApplied(version, workers() if there else (), (), pools=pools))
            pool = decode_pools_of(desk.core).get(POOL.name)
            assert (pool is not None) is there
            if pool is not None:
                assert pool.predictor.is_ready(desk.clock.now_ns())
                pool.predictor.history.add(Ended(3, 10, output, 1, 0))
    desk.close()
    kept = read_history(path)
    assert kept is not None
    assert [each.output_tokens for each in kept.ended] == [7, 8, 9]
    assert '"level":"error"' not in stream.getvalue().replace(": ", ":"), stream.getvalue()


OWN = replace(POOL, name=PoolName("pd"))
ADOPTED = PoolName("pd@ap-1")
FITTED_TO = PredictionConfig(kind=PredictorKind.SURVIVAL, requests_min=1)


@pytest.mark.parametrize(
    ("stored", "ended_since", "handed", "wanted"),
    [
        ((), 0, (50, 60, 70), [50, 60, 70]),
        ((), 1, (50, 60, 70), [50, 60, 70, 9]),
        ((50,), 1, (50, 60, 70), [50, 60, 70, 9]),
        ((50, 60, 70), 0, (50, 60, 70), [50, 60, 70]),
        ((50, 60, 70), 1, (50, 60, 70), [50, 60, 70, 9]),
        ((50, 60, 70, 80), 0, (50, 60, 70), [50, 60, 70, 80]),
    ],
)
async def test_what_this_gateway_recorded_and_lost_comes_back_before_what_has_ended_since(
    tmp_path: Path, stored: tuple[int, ...], ended_since: int, handed: tuple[int, ...], wanted: list[int]
) -> None:
    if stored:
        ended = tuple(Ended(3, 10, output, 0, 0) for output in stored)
        write_history(tmp_path / f"us-1.{OWN.name}.history.json", Snapshot(ended, len(stored)), 0)
    async with predictors_of(tmp_path) as (desk, predictors, counts):
        predictors.follow((OWN,))
        desk.driver.submit(AssignmentApplied(1, workers_of(OWN.name), (), pools=(OWN,)))
        await until(lambda: bool(predictors.offers()))
        for _ in range(ended_since):
            request_ended(desk, OWN.name, 9)
        for _ in range(2):
            predictors.take_history(history_of(*handed))
            assert told(desk, OWN.name) == wanted
        (offer,) = predictors.offers()
        assert offer.added == len(wanted)
        assert counts == ["taken"] * (len(handed) > len(stored) + ended_since)


async def test_a_lost_history_that_comes_before_its_pool_is_restored_waits(tmp_path: Path) -> None:
    async with predictors_of(tmp_path) as (desk, predictors, _):
        predictors.take_history(history_of(50, 60))
        predictors.follow((OWN,))
        await until(lambda: decode_pools_of(desk.core).history_of(OWN.name) is not None)
        assert told(desk, OWN.name) == [50, 60]


async def test_an_adopter_is_fitted_to_what_others_recorded_and_offers_and_stores_only_its_own(tmp_path: Path) -> None:
    spec = replace(OWN, name=ADOPTED, features=PoolSections(prediction=FITTED_TO).texts())
    stored_at = tmp_path / f"us-1.{quote(ADOPTED, safe='')}.history.json"
    async with predictors_of(tmp_path) as (desk, predictors, counts):
        predictors.take_history(history_of(50, 60, 70, by="ap-1", home="ap-1", added=13))
        predictors.take_history(history_of(80, by="eu-1", home="ap-1"))
        desk.driver.submit(AssignmentApplied(1, workers_of(ADOPTED), (), pools=(spec,)))
        predictors.follow((spec,))
        assert predictors.offers() == [], "what is stored here is not read yet"
        known = decode_pools_of(desk.core).get(ADOPTED)
        assert known is not None
        await until(lambda: known.predictor.is_ready(desk.clock.now_ns()))
        assert fitted_to(predictors) == [50, 60, 70, 80]
        request_ended(desk, ADOPTED, 90)
        (offer,) = predictors.offers()
        assert (offer.home, offer.pool, offer.added) == ("ap-1", "pd", 1)
        sent = offer.make()
        assert (sent.recorded_by, sent.added, sent.rows()) == ("us-1", 1, [(10, 90, 0)])
        predictors.take_history(history_of(50, 60, 70, by="ap-1", home="ap-1", added=13))
        predictors.take_history(history_of(1, by="ap-1", home="ap-1"))
        assert fitted_to(predictors) == [50, 60, 70, 80], "it is older than what is here, after a reconnect"
        predictors.take_history(history_of(1, 2, by="eu-1", home="ap-1"))
        assert fitted_to(predictors) == [50, 60, 70, 1, 2]
        assert counts == ["taken", "taken", "sent", "taken"]
        predictors.follow(())
        await until(stored_at.exists)
        assert predictors._arrived == {}
    stored = read_history(stored_at)
    assert stored is not None
    assert [each.output_tokens for each in stored.ended] == [90]


async def test_what_comes_for_a_pool_that_is_not_assigned_then_is_dropped(tmp_path: Path) -> None:
    async with predictors_of(tmp_path) as (_, predictors, _):
        predictors.take_history(history_of(50, by="ap-1", home="ap-1"))
        predictors.follow((OWN,))
        assert predictors._arrived == {}


async def test_a_pool_that_another_gateway_serves_is_not_offered(tmp_path: Path) -> None:
    async with predictors_of(tmp_path) as (desk, predictors, _):
        predictors.follow((OWN,))
        desk.driver.submit(AssignmentApplied(1, workers_of(OWN.name), (), pools=(OWN,)))
        await until(lambda: bool(predictors.offers()))
        desk.driver.submit(AssignmentApplied(2, (), (), pools=(OWN,)))
        assert predictors.offers() == []


async def test_histories_of_pools_that_never_come_are_bounded(tmp_path: Path) -> None:
    async with predictors_of(tmp_path) as (_, predictors, _):
        for number in range(100):
            predictors.take_history(history_of(number + 1, by="eu-1", home=f"ap-{number}"))
        assert len(predictors._arrived) == 64
        assert PoolName("pd@ap-99") in predictors._arrived


@asynccontextmanager
async def predictors_of(folder: Path) -> AsyncIterator[tuple[ObservedCore, Predictors, list[str]]]:
    """Predictors of a gateway, with what they counted."""
    config = replace(region_config("us-1", US, (), policy_file=write_policy(folder, US)), state=StateConfig(folder))
    desk = ObservedCore(config, Clock(), make_logger(LoggingConfig(), config.gateway_id, io.StringIO()))
    counts: list[str] = []
    async with Supervisor(desk.clock, desk.loop_failed) as loops:
        tenure = OwnedLoops(loops, desk.clock, desk.loop_failed)
        tenure.begin()
        yield desk, Predictors(config, desk, tenure, counts.append), counts
    desk.close()


def workers_of(pool: PoolName) -> tuple[ReplicaSpec, ...]:
    return tuple(replace(each, pool=pool) for each in workers())


def told(desk: ObservedCore, name: PoolName) -> list[int]:
    known = decode_pools_of(desk.core).history_of(name)
    assert known is not None
    return [each.output_tokens for each in known.snapshot().ended]


def request_ended(desk: ObservedCore, name: PoolName, output: int) -> None:
    pool = decode_pools_of(desk.core).get(name)
    assert pool is not None
    facts = Facts(RequestId("r"), 10)
    facts.noted = pool.predictor.note(facts)
    pool.predictor.ended(facts, output, desk.clock.now_ns())


def fitted_to(predictors: Predictors) -> list[int]:
    """Lengths of the answers that other gateways recorded of the adopted pool."""
    known = with_arrived(Snapshot((), 0), predictors._arrived_of(ADOPTED), 100)
    return [each.output_tokens for each in known.ended]


async def test_the_secret_for_a_first_adopted_pool_is_read_off_the_event_loop(tmp_path: Path) -> None:
    config = replace(
        region_config("us-1", US, (), policy_file=write_policy(tmp_path, US)),
        state=StateConfig(tmp_path),
        control=ControlConfig(controllers=(Address("127.0.0.1", 7080),)),
    )
    desk = ObservedCore(config, Clock(), make_logger(LoggingConfig(), config.gateway_id, io.StringIO()))
    extension = DisaggregatedExtension(config, desk)
    ask = extension.prompt_key
    assert ask is not None
    extension.apply(config, Orders())
    async with Supervisor(desk.clock, desk.loop_failed) as loops:
        extension.run(loops, OwnedLoops(loops, desk.clock, desk.loop_failed))
        extension.begin()
        extension.apply(config, Orders(pools=(POOL,)))
        assert not (tmp_path / "us-1.prompts.secret.json").exists()
        assert ask(LONG) == b""
        await until(lambda: len(ask(LONG)) == 8)
        assert ask(LONG) == keys(tmp_path).of(LONG)
    desk.close()
