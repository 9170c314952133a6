from __future__ import annotations

import io
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.app.observed_core import ObservedCore
from gateway.config.orders import Orders
from gateway.config.sections import ControlConfig, GatewayConfig, StateConfig
from gateway.core.features.disaggregated.feature import decode_pools_of
from gateway.core.features.disaggregated.predictors.arrays import PredictorKind
from gateway.core.features.disaggregated.predictors.history import Ended, Snapshot
from gateway.core.kernel.events import AssignmentApplied
from gateway.core.vocabulary import GatewayId
from gateway.features.disaggregated.config import PredictionConfig
from gateway.features.disaggregated.extension import DisaggregatedExtension
from gateway.features.disaggregated.files import read_history, write_history
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
