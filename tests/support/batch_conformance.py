"""Tests for every store of batches. Each kind of database has a test class that inherits these and makes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest
from msgspec.structs import replace

from gateway.core.vocabulary import TenantName
from gateway.features.batches.database import Database, LeaseLost, RowOutdated, Statement
from gateway.features.batches.lease import BatchHolding
from gateway.features.batches.lines import digest_of
from gateway.features.batches.state import (
    BatchStatus,
    ClientBatch,
    StoredFile,
    StoredPart,
    UploadInParts,
    UploadStatus,
    cancelling,
    ended,
    validated,
)
from gateway.features.batches.store import (
    BatchMissing,
    BatchStore,
    FileInUse,
    FileMissing,
    ResultGroup,
    ResultKind,
    TakenBatch,
)
from tests.support.batches import client_batch

OUTPUT, ERROR = ResultKind.OUTPUT, ResultKind.ERROR


def stored_file(file_id: str, **changes: object) -> StoredFile:
    made = StoredFile(
        id=file_id, tenant=TenantName("acme"), filename="a", purpose="batch", size=1, created_s=1, expires_s=2
    )
    return replace(made, **changes)


UPLOAD = UploadInParts(
    id="upload_1", tenant=TenantName("acme"), filename="a", size=2, created_s=0, expires_s=3600, keep_s=7200
)


def group_of(number: int, *custom_ids: str, unrun: int = 0) -> ResultGroup:
    data = "".join(f"{each}\n" for each in custom_ids).encode()
    return ResultGroup(number, b"".join(map(digest_of, custom_ids)), unrun, len(data), data)


def digests_in(store: BatchStore, batch_id: str = "batch_1") -> list[bytes]:
    """Digests of all results of a batch, each as often as it is stored."""
    found = b""
    for kind in ResultKind:
        after = 0
        while groups := store.groups(batch_id, kind, after, with_data=False):
            found += b"".join(each.digests for each in groups)
            after = groups[-1].number
    return [found[at : at + 16] for at in range(0, len(found), 16)]


class BatchStoreConformance(ABC):
    """Tests of a store of batches, as two gateways use it."""

    @abstractmethod
    def database(self) -> Database:
        """New object for one database, which is empty at first."""

    @abstractmethod
    def second(self, first: Database) -> Database:
        """Database as the second gateway uses it."""

    @pytest.fixture
    def stores(self) -> Iterator[tuple[BatchStore, BatchStore]]:
        database = self.database()
        one = BatchStore(database, "gateway-1", "us")
        one.open()
        second = self.second(database)
        two = BatchStore(second, "gateway-2", "us")
        if second is not database:
            two.open()
        yield one, two
        two.close()
        one.close()

    @pytest.fixture
    def one(self, stores: tuple[BatchStore, BatchStore]) -> BatchStore:
        return stores[0]

    @pytest.fixture
    def two(self, stores: tuple[BatchStore, BatchStore]) -> BatchStore:
        return stores[1]

    @pytest.fixture
    def batch(self, one: BatchStore) -> ClientBatch:
        batch = validated(client_batch(), "m", 4, (), 0)
        one.put_file(stored_file(batch.input_file_id))
        one.put_new(batch)
        return batch

    def test_a_new_one_is_empty(self, one: BatchStore) -> None:
        changes = one.changes(0)
        assert (changes.files, changes.batches, changes.gone, changes.holdings) == ([], [], [], {})

    def test_each_gateway_sees_what_changed_since_its_last_look(self, one: BatchStore, two: BatchStore) -> None:
        seen = two.changes(0).revision
        one.put_file(first := stored_file("file-in", parts=(StoredPart("x", 1),)))
        one.put_new(batch := client_batch())
        changes = two.changes(seen)
        assert (changes.files, [each.batch for each in changes.batches]) == ([first], [batch])
        seen = changes.revision
        assert two.changes(seen).files == []
        two.put_file(changed := stored_file("file-in", size=2))
        assert one.changes(seen).files == [changed]

    def test_deleted_rows_are_told(self, one: BatchStore, two: BatchStore, batch: ClientBatch) -> None:
        one.put_file(stored_file("file-1"))
        seen = two.changes(0).revision
        one.delete_file("file-1")
        one.delete_batch(batch.id)
        one.delete_batch(batch.id)
        assert sorted(two.changes(seen).gone) == [batch.id, "file-1"]
        changes = two.changes(0)
        assert ([each.id for each in changes.files], changes.batches) == ([batch.input_file_id], [])

    def test_a_batch_that_is_deleted_before_its_end_leaves_no_results(
        self, one: BatchStore, batch: ClientBatch
    ) -> None:
        holding = held(one.take(batch.id, None)).holding
        one.append(holding, OUTPUT, group_of(1, "a"), 1)
        one.add_part(holding, OUTPUT, 1, StoredPart("x", 2))
        one.delete_batch(batch.id)
        assert (digests_in(one), one.parts(batch.id, OUTPUT)) == ([], ())

    def test_the_input_file_of_a_batch_that_has_not_ended_stays(
        self, one: BatchStore, two: BatchStore, batch: ClientBatch
    ) -> None:
        before = two.changes(0)
        with pytest.raises(FileInUse):
            two.delete_file(batch.input_file_id)
        assert two.changes(0) == before
        one.put_batch(ended(replace(batch, status=BatchStatus.FINALIZING), 4, 0, 9), 1)
        two.delete_file(batch.input_file_id)
        assert one.changes(0).files == []

    def test_a_batch_whose_input_file_was_deleted_is_refused(self, one: BatchStore, two: BatchStore) -> None:
        one.put_file(stored_file("file-in"))
        two.delete_file("file-in")
        with pytest.raises(FileMissing):
            one.put_new(client_batch())
        assert two.changes(0).batches == []

    def test_uploads_in_parts_are_seen_by_each_gateway(self, one: BatchStore, two: BatchStore) -> None:
        one.put_upload(UPLOAD)
        two.put_file(part := stored_file("file-part", upload=UPLOAD.id))
        changes = one.changes(0)
        assert (changes.uploads, changes.files) == ([UPLOAD], [part])
        two.end_upload(cancelled := replace(UPLOAD, status=UploadStatus.CANCELLED))
        assert one.changes(changes.revision).uploads == [cancelled]
        one.delete_upload(UPLOAD.id)
        assert (two.changes(changes.revision).gone, two.changes(0).uploads) == ([UPLOAD.id], [])

    def test_an_upload_ends_once(self, one: BatchStore, two: BatchStore) -> None:
        one.put_upload(UPLOAD)
        file, late = stored_file("file-1"), stored_file("file-2")
        one.put_file(file, done := replace(UPLOAD, status=UploadStatus.COMPLETED, file=file))
        before = two.changes(0)
        with pytest.raises(RowOutdated):
            two.put_file(late, replace(done, file=late))
        with pytest.raises(RowOutdated):
            two.put_file(stored_file("file-part", upload=UPLOAD.id))
        with pytest.raises(RowOutdated):
            two.end_upload(replace(UPLOAD, status=UploadStatus.CANCELLED))
        assert two.changes(0) == before
        assert (before.uploads, before.files) == ([done], [file])

    def test_parts_are_deleted_together(self, one: BatchStore, two: BatchStore) -> None:
        one.put_upload(UPLOAD)
        names = ["file-a", "file-b"]
        for name in names:
            one.put_file(stored_file(name, upload=UPLOAD.id))
        one.put_file(kept := stored_file("file-c"))
        before = two.changes(0)
        for _ in range(2):
            one.delete_parts([*names, "file-unknown"])
            assert sorted(two.changes(before.revision).gone) == names
            assert two.changes(0).files == [kept]

    def test_a_row_that_is_stored_is_found(self, one: BatchStore, two: BatchStore) -> None:
        assert not two.has_file("file-1")
        one.put_file(stored_file("file-1"))
        assert two.has_file("file-1")

    def test_a_part_of_an_upload_that_is_not_there_is_refused(self, one: BatchStore) -> None:
        with pytest.raises(RowOutdated):
            one.put_file(stored_file("file-part", upload=UPLOAD.id))

    def test_a_database_of_a_version_without_uploads_is_taken_over(self, one: BatchStore, batch: ClientBatch) -> None:
        one._database.run(Statement("DROP TABLE nightside_batch_uploads"))
        one._database.close()
        one.open()
        one.put_upload(UPLOAD)
        changes = one.changes(0)
        assert (changes.uploads, [each.batch.id for each in changes.batches]) == ([UPLOAD], [batch.id])

    def test_of_two_changes_of_one_version_one_is_refused(
        self, one: BatchStore, two: BatchStore, batch: ClientBatch
    ) -> None:
        two.put_batch(cancelling(batch, 1), 1)
        with pytest.raises(RowOutdated):
            one.put_batch(replace(batch, model="other"), 1)
        (row,) = one.changes(0).batches
        assert (row.version, row.batch.status) == (2, BatchStatus.CANCELLING)

    def test_one_gateway_holds_a_batch(self, one: BatchStore, two: BatchStore, batch: ClientBatch) -> None:
        taken = held(one.take(batch.id, None))
        assert (taken.holding.term, taken.line_offset, taken.row.batch) == (1, 0, batch)
        assert two.take(batch.id, None) is None
        one.release(taken.holding)
        assert held(two.take(batch.id, None)).holding.term == 2

    def test_a_batch_that_was_deleted_is_told_from_one_of_another_gateway(
        self, one: BatchStore, two: BatchStore, batch: ClientBatch
    ) -> None:
        one.delete_batch(batch.id)
        with pytest.raises(BatchMissing):
            two.take(batch.id, None)

    def test_a_renewal_keeps_others_from_taking(self, one: BatchStore, two: BatchStore, batch: ClientBatch) -> None:
        holding = held(one.take(batch.id, None)).holding
        seen = two.changes(0).holdings[batch.id]
        assert one.renew([(holding, 70)]) == [holding]
        assert two.take(batch.id, seen) is None
        lapsed = two.changes(0).holdings[batch.id]
        taken = held(two.take(batch.id, lapsed))
        assert (taken.holding.term, taken.line_offset) == (2, 70)
        assert one.renew([(holding, 80)]) == []
        assert held(two.take(batch.id, two.changes(0).holdings[batch.id])).line_offset == 70

    def test_a_gateway_whose_holding_was_taken_writes_nothing(
        self, one: BatchStore, two: BatchStore, batch: ClientBatch
    ) -> None:
        stale = held(one.take(batch.id, None)).holding
        one.append(stale, OUTPUT, group_of(1, "a"), 1)
        two.take(batch.id, two.changes(0).holdings[batch.id])
        with pytest.raises(LeaseLost):
            one.append(stale, OUTPUT, group_of(2, "b"), 2)
        with pytest.raises(LeaseLost):
            one.add_part(stale, OUTPUT, 1, StoredPart("x", 2))
        with pytest.raises(LeaseLost):
            one.put_batch(ended(replace(batch, total=1), 1, 0, 5), 1, stale, [stored_file("file-out")])
        one.release(stale)
        changes = one.changes(0)
        files = [each.id for each in changes.files]
        assert (files, [each.batch.status for each in changes.batches]) == ([batch.input_file_id], [batch.status])
        assert changes.batches[0].owner == "gateway-2"
        assert digests_in(two) == [digest_of("a")]
        assert two.parts(batch.id, OUTPUT) == ()

    def test_results_that_are_written_again_stand_once(self, one: BatchStore, batch: ClientBatch) -> None:
        holding = held(one.take(batch.id, None)).holding
        for _ in range(2):
            one.append(holding, OUTPUT, group_of(1, "a", "b"), 2)
            one.append(holding, ERROR, group_of(1, "c", unrun=1), 1)
        assert digests_in(one) == [*map(digest_of, "abc")]
        assert sorted(one.result_sizes()) == [(batch.id, OUTPUT, 4), (batch.id, ERROR, 2)]
        (row,) = one.changes(0).batches
        assert (row.batch.completed, row.batch.failed) == (2, 1)
        assert [each.unrun for each in one.groups(batch.id, ERROR, 0, with_data=False)] == [1]

    def test_results_become_a_part(self, one: BatchStore, batch: ClientBatch) -> None:
        holding = held(one.take(batch.id, None)).holding
        for number, custom_id in enumerate("abc", 1):
            one.append(holding, OUTPUT, group_of(number, custom_id), number)
        (first,) = one.groups(batch.id, OUTPUT, 0, with_data=True)
        assert (first.number, first.data) == (1, b"a\n")
        for _ in range(2):
            one.add_part(holding, OUTPUT, 2, StoredPart("out.1-2", 4))
        (left,) = one.groups(batch.id, OUTPUT, 0, with_data=True)
        assert (left.number, left.data) == (3, b"c\n")
        assert one.parts(batch.id, OUTPUT) == (StoredPart("out.1-2", 4),)
        assert digests_in(one) == [*map(digest_of, "abc")]

    def test_a_batch_that_has_ended_is_held_no_longer(
        self, one: BatchStore, two: BatchStore, batch: ClientBatch
    ) -> None:
        taken = held(one.take(batch.id, None))
        one.append(taken.holding, OUTPUT, group_of(1, *"abcd"), 4)
        one.add_part(taken.holding, OUTPUT, 1, StoredPart("out.1-1", 8))
        done = ended(batch, 4, 0, 9)
        one.put_batch(done, taken.row.version, taken.holding, [stored_file("file-out")])
        changes = two.changes(0)
        assert [(each.batch, each.owner) for each in changes.batches] == [(done, "")]
        assert sorted(each.id for each in changes.files) == [batch.input_file_id, "file-out"]
        assert (digests_in(two), two.parts(batch.id, OUTPUT), changes.holdings) == ([], (), {})

    def test_a_process_that_begins_gives_up_what_the_one_before_has_held(
        self, one: BatchStore, two: BatchStore, batch: ClientBatch
    ) -> None:
        holding = held(one.take(batch.id, None)).holding
        one._database.close()
        one.open()
        assert two.changes(0).holdings == {}
        with pytest.raises(LeaseLost):
            one.append(holding, OUTPUT, group_of(1, "a"), 1)
        assert held(two.take(batch.id, None)).holding.term > holding.term

    def test_a_gateway_of_another_jurisdiction_is_refused(self, one: BatchStore) -> None:
        one.close()
        elsewhere = BatchStore(self.database(), "gateway-3", "eu")
        with pytest.raises(OSError, match="holds batches of jurisdiction us, not eu"):
            elsewhere.open()
        one.open()

    @pytest.mark.parametrize("seed", range(5))
    def test_in_any_order_of_events_each_line_has_one_result(
        self, stores: tuple[BatchStore, BatchStore], batch: ClientBatch, seed: int
    ) -> None:
        """Two owners that stall, wake and take over from each other, at random; answers are lost as well."""
        rng = Random(seed)
        holdings: list[BatchHolding | None] = [None, None]
        done: list[set[bytes]] = [set(), set()]
        lasts = [0, 0]
        lines = [f"line-{number}" for number in range(40)]
        for _ in range(400):
            turn = rng.randrange(2)
            store, holding = stores[turn], holdings[turn]
            if holding is None or rng.random() < 0.1:
                mark = store.changes(0).holdings.get(batch.id)
                if (taken := store.take(batch.id, mark)) is not None:
                    holdings[turn] = taken.holding
                    done[turn] = set(digests_in(store))
                    numbers = [each.number for each in store.groups(batch.id, OUTPUT, 0, with_data=False)]
                    lasts[turn] = max(numbers, default=0)
                continue
            left = [each for each in lines if digest_of(each) not in done[turn]]
            if not left:
                break
            group = group_of(lasts[turn] + 1, *rng.sample(left, min(3, len(left))))
            with suppress(LeaseLost):
                for _ in range(rng.randint(1, 2)):
                    store.append(holding, OUTPUT, group, 0)
                done[turn].update(digest_of(each) for each in group.data.decode().split())  # type: ignore[union-attr]
                lasts[turn] = group.number
        found = digests_in(stores[0])
        assert len(found) == len(set(found)) > 20


def held(taken: TakenBatch | None) -> TakenBatch:
    assert taken is not None, "no other gateway holds it"
    return taken
