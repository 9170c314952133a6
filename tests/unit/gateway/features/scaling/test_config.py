from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.core.features.scaling.vocabulary import Floor
from gateway.features.scaling.config import minute_of
from tests.hostile.webhook_urls import URL_CASES, UrlCase
from tests.support.region_files import SMALLEST, load_config, region_at, region_faults


def scaling(text: str) -> str:
    return SMALLEST + "scaling:\n" + text


POOL = "  pools: [{model: MODEL, concurrency: 16, replicas_max: 8%s}]\n"


def model_of(folder: Path) -> str:
    (replica, *_) = load_config(region_at(folder, SMALLEST), environ={}).replicas
    return replica.spec.models[0]


def written(folder: Path, text: str) -> str:
    return scaling(text.replace("MODEL", model_of(folder)))


def test_a_pool_says_what_its_replicas_do_and_a_plan_is_read_by_the_minute(tmp_path: Path) -> None:
    floors = ", floors: [{at: '06:30', replicas: 3}, {at: '20:00', replicas: 0}], price: 2.5"
    config = load_config(region_at(tmp_path, written(tmp_path, POOL % floors)), environ={})
    (pool,) = (each.as_settings() for each in config.scaling.pools)
    assert (pool.concurrency, pool.replicas_min, pool.replicas_max, pool.price) == (16, 1, 8, 2.5)
    assert pool.floors == (Floor(390, 3), Floor(1200, 0))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (POOL % ", replicas_min: 9", "scaling.pools[0].replicas_min: is above replicas_max"),
        (POOL % ", pool: other", "in pool 'other' as a whole"),
        (POOL % ", floors: [{at: '6:30', replicas: 1}]", "'6:30' is not a time of day such as 06:30"),
        (POOL % ", floors: [{at: '06:30', replicas: 9}]", "floors[0].replicas: is above replicas_max"),
        (
            POOL % ", floors: [{at: '06:30', replicas: 1}, {at: '06:30', replicas: 2}]",
            "come after the one before",
        ),
        (POOL % ", floor: 1", "floor"),
        ("  pools: [{model: MODEL, concurrency: 0, replicas_max: 8}]\n", "concurrency"),
        ("  pools: [{model: MODEL, concurrency: 1, replicas_max: 20000}]\n", "should be at most 10,000"),
        (
            "  pools:\n" + "    - {model: MODEL, concurrency: 1, replicas_max: 2}\n" * 2,
            "is listed twice",
        ),
        ("  down_after: 1s\n", "scaling.down_after: is below scaling.interval"),
        (
            "  webhook: {url: 'http://scaler.example.net/', secret_file: SECRET}\n",
            "beyond this machine, without TLS",
        ),
        ("  webhook: {url: 'https://scaler.example.net/', secret_file: nowhere}\n", "cannot be read"),
        (
            "  webhook: {url: 'https://a.example/', secret_file: SECRET, retry_min: 2m}\n",
            "scaling.webhook.retry_max: is below scaling.webhook.retry_min",
        ),
    ],
)
def test_what_does_not_go_together_is_named_by_its_key(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "SECRET").write_text("s3cret")
    faults = region_faults(tmp_path, written(tmp_path, text))
    assert any(fault in each for each in faults), faults


@pytest.mark.parametrize("case", URL_CASES, ids=lambda case: case.name)
def test_a_webhook_is_told_by_tls_at_the_host_that_its_line_reads_as_or_on_this_machine(
    tmp_path: Path, case: UrlCase
) -> None:
    (tmp_path / "secret").write_text("s3cret")
    text = scaling(f"  webhook: {{url: {json.dumps(case.url)}, secret_file: secret}}\n")
    if case.fault:
        faults = region_faults(tmp_path, text)
        assert any("scaling.webhook.url" in each and case.fault in each for each in faults), faults
    else:
        config = load_config(region_at(tmp_path, text), environ={})
        assert config.scaling.webhook is not None
        assert config.scaling.webhook.url == case.url


def test_a_webhook_on_this_machine_needs_no_tls_and_its_secret_is_one_of_the_files_that_are_looked_after(
    tmp_path: Path,
) -> None:
    (tmp_path / "secret").write_text("s3cret")
    text = scaling("  webhook: {url: 'http://127.0.0.1:9000/x', secret_file: secret}\n")
    config = load_config(region_at(tmp_path, text), environ={})
    assert config.scaling.webhook is not None
    assert config.scaling.webhook.secret_file == tmp_path / "secret"
    assert tmp_path / "secret" in config.secret_files


def test_minutes_of_a_day() -> None:
    assert minute_of("00:00") == 0
    assert minute_of("23:59") == 1439
    for wrong in ("24:00", "12:60", "noon", "1:00"):
        with pytest.raises(ValueError, match="time of day"):
            minute_of(wrong)
