"""Costs of the audit log's requests by tenant and region, from where they ran, for how long, and the bytes that left a
region. It reads lines that were verified, and changes none.

Each request counts once, by the line of the gateway that its client spoke to. Replica time is an estimate: the time
from asking a target to the end of its answer, divided by the number of requests that share a well-used replica
according to the price list. The costs are for time that requests used, at the price of that hour; hours that were paid
for and idle are not included.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import datetime

from msgspec import Struct, field
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from gateway.core.features.prices.price_list import PriceList
from gateway.core.features.prices.price_table import HOUR_NS, MICROS, PriceTable
from gateway.core.vocabulary import DEFAULT_POOL, RegionName
from gateway.records.audit import AuditLine

UNNAMED = "(not named)"
"""Tenant in rows for requests whose line may not name it."""
STREAMED_TOKEN_BYTES = 250
"""Bytes of a streamed token on the wire: each token comes in a JSON event of its own."""
TOKEN_BYTES = 5
"""Bytes of a token in an answer of one piece."""
_HOUR_MS = HOUR_NS // 1_000_000
_COLUMNS = (
    "tenant",
    "region",
    "requests",
    "prompt_tokens",
    "output_tokens",
    "replica_seconds",
    "replica_money",
    "egress_money",
    "carbon_grams",
)


class Share(Struct):
    """Usage of one region by one tenant."""

    requests: int = 0
    """Number of requests answered there."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    replica_ms: float = 0.0
    """Replica time of all legs there, answered or not."""
    replica_micros: float = 0.0
    egress_micros: float = 0.0
    """Cost of sending prompts into the region and answers out of it."""
    milligrams: float = 0.0
    """Milligrams of CO2, including idling only where replicas are paid by use."""

    @property
    def money(self) -> float:
        return (self.replica_micros + self.egress_micros) / MICROS


class PricedRecord(Struct):
    """Sums over lines that are added one by one."""

    prices: PriceList
    shares: dict[tuple[str, str], Share] = field(default_factory=dict)
    """Shares by tenant and region."""
    untimed: int = 0
    """Requests whose line has no running time, written by gateways that do not record it."""
    unpriced: set[str] = field(default_factory=set)
    """Regions for which the list has no price."""
    whole_replicas: set[str] = field(default_factory=set)
    """Regions for which the list has no `requests_per_replica`: each request there is charged a whole replica."""
    _table: tuple[int, PriceTable] | None = None

    def take(self, line: AuditLine) -> None:
        """Add a line. A forward is skipped: it is in the audit log of the gateway that it came from."""
        if line.origin_gateway or not line.attempts:
            return
        tenant = UNNAMED if line.tenant is None else line.tenant
        table = self._at(line.time)
        if all(each.ran_ms is None for each in line.attempts):
            self.untimed += 1
        for attempt in line.attempts:
            self._ran(self._share(tenant, attempt.region), table, attempt.region, attempt.ran_ms or 0)
        if line.processed is not None:
            self._answered(self._share(tenant, line.processed.region), table, line)

    def _share(self, tenant: str, region: str) -> Share:
        return self.shares.setdefault((tenant, region), Share())

    def _ran(self, share: Share, table: PriceTable, region: str, ran_ms: int) -> None:
        price = table.of(RegionName(region), DEFAULT_POOL)
        if price is None:
            self.unpriced.add(region)
            share.replica_ms += ran_ms
            return
        if not price.requests_at_once:
            self.whole_replicas.add(region)
        replica_ms = ran_ms / max(1, price.requests_at_once)
        share.replica_ms += replica_ms
        share.replica_micros += price.hour_micros * replica_ms / _HOUR_MS
        share.milligrams += price.busy_milligrams * replica_ms / _HOUR_MS

    def _answered(self, share: Share, table: PriceTable, line: AuditLine) -> None:
        assert line.processed is not None, "it was answered"
        home, away = RegionName(line.region), RegionName(line.processed.region)
        output_tokens = line.output_tokens or 0
        share.requests += 1
        share.prompt_tokens += line.prompt_tokens or 0
        share.output_tokens += output_tokens
        answer_bytes = output_tokens * (STREAMED_TOKEN_BYTES if line.streamed else TOKEN_BYTES)
        share.egress_micros += table.egress_micros(home, away, line.prompt_bytes)
        share.egress_micros += table.egress_micros(away, home, answer_bytes)

    def _at(self, time: str) -> PriceTable:
        """Prices at a time. Lines come in order of time, so the table of the previous line's minute mostly fits."""
        wall_s = int(datetime.fromisoformat(time).timestamp())
        if self._table is None or self._table[0] != wall_s // 60:
            self._table = wall_s // 60, PriceTable(self.prices.at(wall_s))
        return self._table[1]

    # Results

    @property
    def rows(self) -> list[tuple[str, str, Share]]:
        return [(tenant, region, share) for (tenant, region), share in sorted(self.shares.items())]

    def document(self) -> dict[str, object]:
        return {
            "currency": self.prices.currency,
            "price_list": self.prices.digest,
            "total": round(sum(share.money for *_, share in self.rows), 6),
            "shares": [dict(zip(_COLUMNS, _cells(*row), strict=True)) for row in self.rows],
            "untimed_requests": self.untimed,
            "unpriced_regions": sorted(self.unpriced),
            "regions_without_requests_per_replica": sorted(self.whole_replicas),
        }

    def as_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow((*_COLUMNS, "currency"))
        for row in self.rows:
            writer.writerow((*_cells(*row), self.prices.currency))
        return text.getvalue()

    def table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, title=f"in {self.prices.currency}, by {self.prices.digest}")
        for name in _COLUMNS:
            table.add_column(name.replace("_", "\n"), justify="left" if name in _COLUMNS[:2] else "right")
        for row in self.rows:
            table.add_row(*(Text(str(each)) for each in _cells(*row)))
        return table

    def remarks(self) -> Iterator[str]:
        yield f"total: {sum(share.money for *_, share in self.rows):.4f} {self.prices.currency}"
        if self.untimed:
            yield f"{self.untimed} requests do not say how long they ran: an older gateway's; their time counts as none"
        for region in sorted(self.unpriced):
            yield f"{region}: the price list has nothing on it"
        for region in sorted(self.whole_replicas):
            yield f"{region}: no requests_per_replica in the price list, so each request had a replica to itself"


def _cells(tenant: str, region: str, share: Share) -> tuple[str | int | float, ...]:
    return (
        tenant,
        region,
        share.requests,
        share.prompt_tokens,
        share.output_tokens,
        round(share.replica_ms / 1000, 3),
        round(share.replica_micros / MICROS, 6),
        round(share.egress_micros / MICROS, 6),
        round(share.milligrams / 1000, 3),
    )
