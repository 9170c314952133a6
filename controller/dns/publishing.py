"""Builds the DNS provider that a controller's file names, and its publisher. It decides nothing of the records."""

from __future__ import annotations

import random
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from controller.config import ControllerFile
from controller.dns.config import RecordsKind
from controller.dns.provider import DnsProvider
from controller.dns.publisher import RecordPublisher
from controller.dns.rfc2136 import Rfc2136Dns
from controller.dns.route53.api import Route53Api
from controller.dns.route53.client import check_installed, make_client
from controller.dns.route53.provider import Route53Dns
from controller.lease import Lease
from controller.metrics import ControllerMetrics
from mesh.clock import Clock

_SECOND_NS = 1_000_000_000


def provider_of(
    file: ControllerFile, lease: Lease, clock: Clock, metrics: ControllerMetrics | None = None
) -> DnsProvider | None:
    """Build the provider; None where the file names none. Raises ConfigError where a package it needs is missing."""
    records, zone = file.sections.records, file.naming.zone_name
    if records.provider is RecordsKind.NONE:
        return None
    if records.provider is RecordsKind.RFC2136:
        on_call = _unheard if metrics is None else metrics.records_called
        return Rfc2136Dns(records.rfc2136, file.records_key, zone, records.owner, lease, on_call=on_call)
    check_installed()
    api = Route53Api(
        records.route53,
        lease,
        clock,
        make_client=lambda: make_client(records.route53),
        rng=random.Random(),
        on_call=_unheard if metrics is None else metrics.records_called,
    )
    on_in_sync: Callable[[float], None] = (lambda _: None) if metrics is None else metrics.records_in_sync
    return Route53Dns(records.route53, api, zone, records.owner, lease, clock=clock, on_in_sync=on_in_sync)


def publisher_of(
    file: ControllerFile, provider: DnsProvider, metrics: ControllerMetrics, log: FilteringBoundLogger
) -> RecordPublisher:
    check_s = file.sections.records.check_interval_ns / _SECOND_NS
    publisher = RecordPublisher(provider, log, check_s=check_s, on_result=metrics.records_ended)
    metrics.follow_records(lambda: publisher.published, lambda: bool(publisher.fault))
    return publisher


def _unheard(_call: str, _result: str) -> None:
    """Ignore a call's result, where there are no metrics."""
