"""Prices of a gateway: from its region file, from a controller, and neither."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.app.observed_core import ObservedCore
from gateway.config.orders import Orders
from gateway.config.sections import GatewayConfig
from gateway.features.extension import Extension
from gateway.features.prices.extension import PricesExtension
from mesh.clock import Clock
from mesh.config import LogFormat, LoggingConfig
from mesh.faults import ConfigError
from mesh.logs import make_logger
from tests.support.core import US
from tests.support.gateways import region_config

POLICY = Path("policy.yaml")
"""Never read here."""
OWN = '{"version": 1, "currency": "USD", "regions": {"us-east-1": {"replica_hour": 1}}}'
TOLD = '{"version": 1, "currency": "EUR", "regions": {"us-east-1": {"replica_hour": 2.5}}}'


def desk_of(config: GatewayConfig) -> ObservedCore:
    return ObservedCore(
        config, Clock(), make_logger(LoggingConfig(format=LogFormat.JSON), config.gateway_id, io.StringIO())
    )


def prices_of(desk: ObservedCore) -> Extension:
    (part,) = (each for each in desk.features if isinstance(each, PricesExtension))
    return part


def described(desk: ObservedCore) -> dict[str, Any]:
    told = prices_of(desk).describe()
    assert isinstance(told, dict)
    return told


def written(folder: Path, text: str) -> Path:
    path = folder / "prices.yaml"
    path.write_text(text)
    return path


async def test_a_controllers_list_replaces_the_region_files_until_there_is_none(tmp_path: Path) -> None:
    config = replace(region_config("us-1", US, [], policy_file=POLICY), prices=written(tmp_path, OWN))
    desk = desk_of(config)
    for orders, currency, source in (
        (Orders(), "USD", "file"),
        (Orders(documents={"prices": TOLD}), "EUR", "controller"),
    ) * 2:
        desk.apply_to_features(config, orders)
        assert (described(desk)["currency"], described(desk)["source"]) == (currency, source)
    desk.close()


async def test_a_controllers_list_that_cannot_be_read_leaves_the_region_files(tmp_path: Path) -> None:
    config = replace(region_config("us-1", US, [], policy_file=POLICY), prices=written(tmp_path, OWN))
    desk = desk_of(config)
    desk.apply_to_features(config, Orders(documents={"prices": TOLD.replace("2.5", "-1")}))
    assert described(desk)["currency"] == "USD"
    assert "prices: regions.us-east-1.replica_hour: should be greater" in described(desk)["fault"]
    desk.close()


async def test_without_a_list_there_is_nothing_to_say() -> None:
    config = region_config("us-1", US, [], policy_file=POLICY)
    desk = desk_of(config)
    desk.apply_to_features(config, Orders())
    assert prices_of(desk).describe() is None
    desk.close()


def test_a_file_is_checked_where_it_is_another_than_before(tmp_path: Path) -> None:
    without = region_config("us-1", US, [], policy_file=POLICY)
    config = replace(without, prices=written(tmp_path, "nothing"))
    PricesExtension.check_files(without, None)
    PricesExtension.check_files(config, config)
    for before in (None, without):
        with pytest.raises(ConfigError):
            PricesExtension.check_files(config, before)
