from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.app.observed_core import ObservedCore
from gateway.config.orders import Orders
from gateway.config.sections import ControlConfig, GatewayConfig, StateConfig
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.disaggregated.predictors.arrays import PredictorKind
from gateway.core.features.disaggregated.predictors.estimator import UNKNOWN_PROMPT
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.kernel.events import AssignmentApplied
from gateway.core.vocabulary import GatewayId, PoolName, ReplicaSpec
from gateway.features.disaggregated.config import PredictionConfig
from gateway.features.disaggregated.extension import DisaggregatedExtension
from gateway.features.disaggregated.files import read_history, write_history
from gateway.features.disaggregated.predictors import Predictors, PromptKeys
from gateway.features.sections import PoolSections
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.control.pool_history import PoolHistory
from mesh.logs import make_logger
from mesh.supervisor import OwnedLoops, Supervisor
from mesh.values import Address
from tests.support.core import US, profile
from tests.support.disaggregated import POOL, workers
from tests.support.gateways import region_config, until, write_policy
from tests.support.histories import KEY_ID, history_of

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
        predictors = Predictors(config, desk, tenure, key_id=lambda: "a")
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
HANDED = history_of(50, 60, 70, by="eu-1", home="us-1", first_away=2)


@pytest.mark.parametrize(
    ("stored", "handed", "wanted"),
    [
        ((), HANDED, [50, 60, 70]),
        ((1, 2), HANDED, [1, 2, 70]),
        ((), replace(HANDED, recorded_by=GatewayId("us-1")), [50, 60, 70]),
        ((1, 2), replace(HANDED, recorded_by=GatewayId("us-1")), [1, 2]),
    ],
)
async def test_at_home_a_history_adds_what_was_recorded_away_and_is_taken_whole_where_the_own_is_lost(
    tmp_path: Path, stored: tuple[int, ...], handed: PoolHistory, wanted: list[int]
) -> None:
    if stored:
        ended = tuple(Ended(3, 10, output, 0, 0) for output in stored)
        write_history(tmp_path / f"us-1.{OWN.name}.history.json", Snapshot(ended, len(stored)), 0)
    async with predictors_of(tmp_path) as (desk, predictors):
        predictors.follow((OWN,))
        predictors.take_history(handed)
        await until(lambda: decode_pools_of(desk.core).history_of(OWN.name) is not None)
        assert told(desk, OWN.name) == wanted


async def test_an_adopter_goes_on_with_what_it_is_handed_and_offers_it_with_what_it_adds(tmp_path: Path) -> None:
    name = PoolName("pd@ap-1")
    spec = replace(OWN, name=name)
    handed = history_of(50, 60, 70, by="ap-1", home="ap-1", keys=(8, 9, 10), added=13, key_id="bb")
    async with predictors_of(tmp_path) as (desk, predictors):
        predictors.take_history(handed)
        desk.driver.submit(AssignmentApplied(1, workers_of(name), (), pools=(spec,)))
        predictors.follow((spec,))
        assert predictors.offers() == [], "what is stored here is not read yet"
        await until(lambda: bool(predictors.offers()))
        assert told(desk, name) == [50, 60, 70]
        known = decode_pools_of(desk.core).get(name)
        assert known is not None
        assert {each.prompt_key for each in known.predictor.history.snapshot().ended} == {UNKNOWN_PROMPT}
        known.predictor.history.add(Ended(5, 10, 80, 13, 0))
        (offer,) = predictors.offers()
        assert (offer.home, offer.pool, offer.added) == ("ap-1", "pd", 14)
        sent = offer.make()
        assert (sent.recorded_by, sent.added, sent.first_away, sent.key_id) == ("us-1", 14, 13, "aa")
        assert [row[2] for row in sent.rows("aa")] == [50, 60, 70, 80]
        predictors.take_history(
            replace(sent, added=13, prompt_keys=b"", after=b"", prompt_tokens=b"", output_tokens=b"")
        )
        assert told(desk, name) == [50, 60, 70, 80], "its own is older than what is here"
        predictors.take_history(history_of(1, by="eu-1", home="ap-1"))
        assert told(desk, name) == [1], "another adopter was before this gateway"


async def test_a_pool_that_another_gateway_serves_is_not_offered(tmp_path: Path) -> None:
    async with predictors_of(tmp_path) as (desk, predictors):
        predictors.follow((OWN,))
        desk.driver.submit(AssignmentApplied(1, workers_of(OWN.name), (), pools=(OWN,)))
        await until(lambda: bool(predictors.offers()))
        desk.driver.submit(AssignmentApplied(2, (), (), pools=(OWN,)))
        assert predictors.offers() == []


async def test_histories_of_pools_that_never_come_are_bounded(tmp_path: Path) -> None:
    async with predictors_of(tmp_path) as (desk, predictors):
        for number in range(100):
            predictors.take_history(history_of(number + 1, by="eu-1", home=f"ap-{number}"))
        first, last = PoolName("pd@ap-0"), PoolName("pd@ap-99")
        predictors.follow((replace(POOL, name=first), replace(POOL, name=last)))
        pools = decode_pools_of(desk.core)
        await until(lambda: pools.history_of(first) is not None and pools.history_of(last) is not None)
        assert (told(desk, first), told(desk, last)) == ([], [100])


@asynccontextmanager
async def predictors_of(folder: Path) -> AsyncIterator[tuple[ObservedCore, Predictors]]:
    config = replace(region_config("us-1", US, (), policy_file=write_policy(folder, US)), state=StateConfig(folder))
    desk = ObservedCore(config, Clock(), make_logger(LoggingConfig(), config.gateway_id, io.StringIO()))
    async with Supervisor(desk.clock, desk.loop_failed) as loops:
        tenure = OwnedLoops(loops, desk.clock, desk.loop_failed)
        tenure.begin()
        yield desk, Predictors(config, desk, tenure, key_id=lambda: KEY_ID)
    desk.close()


def workers_of(pool: PoolName) -> tuple[ReplicaSpec, ...]:
    return tuple(replace(each, pool=pool) for each in workers())


def told(desk: ObservedCore, name: PoolName) -> list[int]:
    known = decode_pools_of(desk.core).history_of(name)
    assert known is not None
    return [each.output_tokens for each in known.snapshot().ended]


def test_the_name_of_a_secret_is_the_same_after_a_restart_and_no_key(tmp_path: Path) -> None:
    made = keys(tmp_path)
    assert keys(tmp_path).key_id == made.key_id
    assert keys(None).key_id != made.key_id
    assert made.key_id != made.of(LONG).hex()


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
