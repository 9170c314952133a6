from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from controller.dns.embedded import EmbeddedDns
from controller.dns.provider import Changes, DnsProvider, PublishedRecords
from mesh.clock import Clock
from mesh.config import LoggingConfig
from mesh.logs import make_logger
from mesh.naming.service import NameService
from mesh.naming.tree import RecordTree
from mesh.values import Address
from tests.support.dns_conformance import DnsConformance


@pytest.fixture
async def service() -> AsyncIterator[NameService]:
    clock = Clock()
    service = NameService(clock, make_logger(LoggingConfig(), "controller", clock=clock))
    await service.start([Address("127.0.0.1", 0)])
    yield service
    await service.stop()


class _Embedded(DnsConformance):
    service: NameService
    kind: type[EmbeddedDns] = EmbeddedDns

    async def open(self) -> DnsProvider:
        return self.kind(self.service)

    @property
    def server(self) -> Address:
        return self.service.addresses[0]


class TestEmbedded(_Embedded):
    @pytest.fixture(autouse=True)
    def _serve(self, service: NameService) -> None:
        self.service = service


class OverwritesWhatIsNewer(EmbeddedDns):
    async def publish(self, tree: RecordTree, changes: Changes) -> int:
        self._service.apply(tree)
        return 1


class LeadsOut(EmbeddedDns):
    async def publish(self, tree: RecordTree, changes: Changes) -> int:
        opened = tuple(replace(each, is_closed=False) for each in tree.areas)
        return await super().publish(replace(tree, areas=opened), changes)


class KeepsWhatIsGone(EmbeddedDns):
    async def publish(self, tree: RecordTree, changes: Changes) -> int:
        before = self._service.tree
        kept = [] if before is None else [each for each in before.areas if each.region in changes.gone]
        return await super().publish(replace(tree, areas=(*kept, *tree.areas)), changes)


class TouchesOnlyTheVersion(EmbeddedDns):
    async def publish(self, tree: RecordTree, changes: Changes) -> int:
        before = self._service.tree
        return await super().publish(tree if before is None else replace(before, version=tree.version), changes)


class SaysWhatItWasToldAndNotWhatIsThere(EmbeddedDns):
    async def publish(self, tree: RecordTree, changes: Changes) -> int:
        self._check_open()
        return 0

    async def read(self) -> PublishedRecords | None:
        return PublishedRecords(1, {}, frozenset(), {})


@pytest.mark.parametrize(
    ("defect", "found_by"),
    [
        (OverwritesWhatIsNewer, "test_what_somebody_else_published_is_found_and_nothing_older_replaces_it"),
        (LeadsOut, "test_a_closed_jurisdiction_keeps_its_clients_or_is_refused"),
        (KeepsWhatIsGone, "test_a_region_that_is_gone_has_no_name_any_more"),
        (TouchesOnlyTheVersion, "test_what_changed_is_told_anew_and_the_rest_as_before"),
        (TouchesOnlyTheVersion, "test_another_ttl_is_told_with_everything"),
        (SaysWhatItWasToldAndNotWhatIsThere, "test_what_was_published_is_answered_and_found"),
    ],
)
async def test_a_provider_with_a_defect_is_found(
    service: NameService, defect: type[EmbeddedDns], found_by: str
) -> None:
    suite = _Embedded()
    suite.service, suite.kind = service, defect
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await getattr(suite, found_by)(await suite.open())
