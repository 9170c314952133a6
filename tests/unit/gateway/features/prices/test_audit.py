"""Cost of the audit log's requests, by tenant and region."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.app.audit_cli import audit
from gateway.core.vocabulary import GatewayId, Place
from gateway.records.audit import AuditAttempt, AuditLine, AuditPlace, AuditProcessed, LostAuditLines
from gateway.records.audit_files import ChainedFiles, ChainSettings
from tests.support.core import AP, EU, US

PRICES = f"""
version: 1
currency: EUR
regions:
  {US.region}: {{replica_hour: 4, requests_per_replica: 10,
    hours: [{{from: "12:00", until: "13:00", replica_hour: 8}}]}}
  {EU.region}: {{replica_hour: 36, requests_per_replica: 10, kilowatts: 1, kilowatts_idle: 0, carbon_g_per_kwh: 360}}
egress:
  {US.region}: {{{EU.region}: 1000}}
  {EU.region}: {{default: 100}}
"""
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Ran:
    """One attempt of a request."""

    place: Place
    ran_ms: int | None
    result: str = "completed"


def line(
    *ran: Ran,
    tenant: str | None = "acme",
    origin: str = "",
    time: str = "2026-03-30T08:00:00.5Z",
    streamed: bool = True,
) -> AuditLine:
    attempts = tuple(
        AuditAttempt("peer:x", each.place.region, each.place.jurisdiction, "d", "r", each.result, ran_ms=each.ran_ms)
        for each in ran
    )
    last = ran[-1].place
    return AuditLine(
        time=time,
        gateway="us-1",
        region=US.region,
        jurisdiction=US.jurisdiction,
        request="r-1",
        origin=AuditPlace(US.region, US.jurisdiction),
        policy="d",
        rule="r",
        outcome="completed",
        origin_gateway=origin,
        tenant=tenant,
        attempts=attempts,
        processed=AuditProcessed("r", last.region, last.jurisdiction),
        prompt_bytes=1_000_000,
        prompt_tokens=1000,
        output_tokens=4000,
        streamed=streamed,
    )


@dataclass
class Record:
    folder: Path

    def price(self, *lines: AuditLine | LostAuditLines, options: tuple[str, ...] = ("--json",)) -> Result:
        settings = ChainSettings(self.folder / "audit", 1 << 20, None, syncs=False)
        files = ChainedFiles(
            settings, GatewayId("us-1"), US, wall_time=lambda: "2026-03-30T08:00:00Z", on_deleted=lambda _: None
        )
        files.write([msgspec.json.encode(each) for each in lines])
        files.close()
        (self.folder / "prices.yaml").write_text(PRICES)
        told = ["price", str(self.folder / "audit"), "--prices", str(self.folder / "prices.yaml"), *options]
        return CliRunner().invoke(audit, told)

    def shares(self, *lines: AuditLine) -> dict[tuple[str, str], dict[str, float]]:
        done = self.price(*lines)
        assert done.exit_code == 0, done.output
        return {(each["tenant"], each["region"]): each for each in json.loads(done.stdout)["shares"]}


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path)


def test_time_at_a_replica_is_shared_with_those_beside_and_costs_what_its_hour_costs(record: Record) -> None:
    shares = record.shares(line(Ran(US, HOUR_MS)), line(Ran(US, HOUR_MS), tenant="bolt", time="2026-03-30T12:30:00Z"))
    home = shares["acme", US.region]
    assert (home["replica_seconds"], home["replica_money"], home["egress_money"]) == (360, 0.4, 0)
    assert (home["requests"], home["prompt_tokens"], home["output_tokens"]) == (1, 1000, 4000)
    assert shares["bolt", US.region]["replica_money"] == 0.8


def test_what_left_the_region_is_paid_both_ways_and_a_stream_is_longer_on_the_wire(record: Record) -> None:
    shares = record.shares(line(Ran(EU, HOUR_MS)), line(Ran(EU, 0), tenant="bolt", streamed=False))
    abroad = shares["acme", EU.region]
    assert abroad["egress_money"] == 1.0 + 0.1
    assert (abroad["replica_money"], abroad["carbon_grams"]) == (3.6, 36)
    assert shares["bolt", EU.region]["egress_money"] == 1.0 + 0.002


def test_what_was_tried_in_vain_is_paid_where_it_was_tried(record: Record) -> None:
    shares = record.shares(line(Ran(EU, HOUR_MS, "failed"), Ran(US, HOUR_MS)))
    assert (shares["acme", EU.region]["requests"], shares["acme", EU.region]["replica_money"]) == (0, 3.6)
    assert shares["acme", US.region]["requests"] == 1


def test_forwards_count_where_their_clients_asked_and_nobody_is_named_who_may_not_be(record: Record) -> None:
    shares = record.shares(line(Ran(US, HOUR_MS), origin="eu-1"), line(Ran(US, HOUR_MS), tenant=None))
    assert list(shares) == [("(not named)", US.region)]


def test_gaps_are_told(record: Record) -> None:
    document = json.loads(record.price(line(Ran(AP, HOUR_MS)), line(Ran(US, None))).stdout)
    assert (document["unpriced_regions"], document["untimed_requests"]) == ([AP.region], 1)
    told = record.price(line(Ran(AP, HOUR_MS)), options=()).stdout
    assert f"{AP.region}: the price list has nothing on it" in told
    lost = record.price(LostAuditLines("2026-03-30T08:00:00Z", "us-1", 3))
    assert (lost.exit_code, "3 lines are missing" in lost.output) == (1, True)


def test_as_csv_it_has_a_line_for_each_tenant_and_region(record: Record) -> None:
    text = record.price(line(Ran(US, HOUR_MS)), options=("--csv",)).stdout
    (row,) = csv.DictReader(text.splitlines())
    assert (row["tenant"], row["region"], row["replica_money"], row["currency"]) == ("acme", US.region, "0.4", "EUR")
    both = record.price(options=("--csv", "--json"))
    assert both.exit_code == 2
