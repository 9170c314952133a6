"""Rows of files and batches, and results on their way to files, in a database that gateways may share.

A gateway that holds a batch writes under the term of its holding; whatever comes under an older one is refused. Every
call blocks, and raises OSError where the database fails. Nothing here decides what becomes of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import IntEnum
from os import urandom

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.features.batches.database import Database, LeaseLost, Refused, Row, RowOutdated, Statement
from gateway.features.batches.lease import BatchHolding, HoldingMark
from gateway.features.batches.state import ClientBatch, StoredFile, StoredPart, UploadInParts

DIGEST_BYTES = 16
_PAGE = 1_000
"""Rows of results that are read at once."""
_GONE_KEPT_MS = 3_600_000
"""Time for which deleted rows are told to other gateways; one that has not looked for longer reads all anew."""
_SCHEMA = (
    "CREATE TABLE nightside_batch_store (id integer PRIMARY KEY, revision bigint NOT NULL, jurisdiction text NOT NULL,"
    " mark text NOT NULL)",
    "INSERT INTO nightside_batch_store VALUES (1, 0, '', '')",
    "CREATE TABLE nightside_batch_files (id text PRIMARY KEY, revision bigint NOT NULL, document {blob} NOT NULL)",
    "CREATE TABLE nightside_batches (id text PRIMARY KEY, revision bigint NOT NULL, version bigint NOT NULL,"
    " owner text NOT NULL, term bigint NOT NULL, renewals bigint NOT NULL, completed bigint NOT NULL,"
    " failed bigint NOT NULL, line_offset bigint NOT NULL, document {blob} NOT NULL, input_file text NOT NULL)",
    "CREATE INDEX nightside_batches_by_input_file ON nightside_batches (input_file)",
    "CREATE TABLE nightside_batch_gone (id text PRIMARY KEY, revision bigint NOT NULL, at_ms bigint NOT NULL)",
    "CREATE TABLE nightside_batch_results (batch text NOT NULL, kind integer NOT NULL, number bigint NOT NULL,"
    " size bigint NOT NULL, unrun bigint NOT NULL, digests {blob} NOT NULL, data {blob},"
    " PRIMARY KEY (batch, kind, number))",
    "CREATE TABLE nightside_batch_parts (batch text NOT NULL, kind integer NOT NULL, number bigint NOT NULL,"
    " name text NOT NULL, size bigint NOT NULL, PRIMARY KEY (batch, kind, number))",
    "CREATE INDEX nightside_batch_files_by_revision ON nightside_batch_files (revision)",
    "CREATE INDEX nightside_batches_by_revision ON nightside_batches (revision)",
    "CREATE INDEX nightside_batches_that_are_held ON nightside_batches (id) WHERE owner <> ''",
    "CREATE INDEX nightside_batch_gone_by_revision ON nightside_batch_gone (revision)",
)
_ADDED = (
    "CREATE TABLE IF NOT EXISTS nightside_batch_uploads (id text PRIMARY KEY, revision bigint NOT NULL,"
    " is_pending integer NOT NULL, document {blob} NOT NULL)",
    "CREATE INDEX IF NOT EXISTS nightside_batch_uploads_by_revision ON nightside_batch_uploads (revision)",
)
_ADVANCE = Statement("UPDATE nightside_batch_store SET revision = revision + 1")
"""First statement of each transaction that changes rows of files, uploads or batches, so that their revisions rise in
the order in which they can be seen."""
_REVISION = "(SELECT revision FROM nightside_batch_store)"
_BATCH_FIELDS = "id, version, owner, term, renewals, completed, failed, document"
_GROUPS = """
    SELECT number, digests, unrun, size, NULL FROM nightside_batch_results
    WHERE batch = $1 AND kind = $2 AND number > $3 ORDER BY number LIMIT $4"""
_GROUPS_WITH_DATA = """
    SELECT number, digests, unrun, size, data FROM nightside_batch_results
    WHERE batch = $1 AND kind = $2 AND number > $3 AND data IS NOT NULL ORDER BY number LIMIT $4"""
_TAKE = """
    UPDATE nightside_batches SET owner = $2, term = term + 1, revision = {revision}
    WHERE id = $1 AND (owner = '' OR (term = $3 AND renewals = $4)) RETURNING {batch}, line_offset"""
_HELD = "id = $1 AND owner = $2 AND term = $3"
_NO_MARK = HoldingMark(-1, -1)
_file_in = msgspec.json.Decoder(StoredFile).decode
_batch_in = msgspec.json.Decoder(ClientBatch).decode
_upload_in = msgspec.json.Decoder(UploadInParts).decode


class BatchMissing(Refused):
    """The store has no such batch."""


class FileInUse(Refused):
    """A batch that has not ended reads the file."""


class FileMissing(Refused):
    """The input file of a new batch was deleted."""


class ResultKind(IntEnum):
    OUTPUT = 0
    ERROR = 1


class BatchRow(Struct, frozen=True):
    """Batch as the store has it."""

    batch: ClientBatch
    version: int
    """Number of the last change of the batch itself; a change has to name it."""
    owner: str
    """Gateway that holds the batch; empty: none."""
    mark: HoldingMark


class StoreChanges(Struct, frozen=True):
    """Rows that changed since an earlier look."""

    revision: int
    files: list[StoredFile]
    uploads: list[UploadInParts]
    batches: list[BatchRow]
    gone: list[str]
    """Ids of rows that were deleted."""
    holdings: dict[str, HoldingMark]
    """All holdings, by batch."""


class TakenBatch(Struct, frozen=True):
    """Batch that this gateway holds from now on."""

    holding: BatchHolding
    row: BatchRow
    line_offset: int
    """Offset in the input file before which each line has a result."""


class ResultGroup(Struct, frozen=True):
    """Results of one kind that are written together."""

    number: int
    digests: bytes
    """Digests of the lines, one after another."""
    unrun: int
    """Lines that their batch's end kept from running."""
    size: int
    data: bytes | None
    """Results; None once they are in a part."""


class BatchStore:
    """Store in one database, as one gateway of one jurisdiction uses it."""

    def __init__(self, database: Database, gateway: str = "gateway", jurisdiction: str = "") -> None:
        self._database = database
        self._gateway = gateway
        self._jurisdiction = jurisdiction
        self.mark = ""
        """Name that no other store has, once it is open."""

    @property
    def is_shared(self) -> bool:
        return self._database.is_shared

    def open(self) -> None:
        """Open the store, and give up what an earlier process of this gateway has held. Raises OSError for the batches
        of another jurisdiction."""
        self._database.open(_SCHEMA, _ADDED)
        _, ((found, self.mark),), *_ = self._database.run(
            Statement(
                "UPDATE nightside_batch_store SET jurisdiction = $1, mark = $2 WHERE mark = ''",
                (self._jurisdiction, urandom(16).hex()),
            ),
            Statement("SELECT jurisdiction, mark FROM nightside_batch_store"),
            *self._give_up(),
        )
        if found != self._jurisdiction:
            self._database.close()
            raise OSError(f"{self._database.name}: holds batches of jurisdiction {found}, not {self._jurisdiction}")

    def close(self) -> None:
        """Close the database, and give up all holdings first where it answers."""
        try:
            with suppress(OSError):
                self._database.run(*self._give_up())
        finally:
            self._database.close()

    def _give_up(self) -> tuple[Statement, Statement]:
        text = "UPDATE nightside_batches SET owner = '', term = term + 1, revision = {revision} WHERE owner = $1"
        return _ADVANCE, _statement(text, self._gateway)

    # Reading

    def changes(self, since: int) -> StoreChanges:
        """Rows that changed after a revision; 0: all. Batches are read before files: one that has ended comes with its
        files, though other gateways write between the two. So are parts before their uploads."""
        ((revision,),), batches, files, uploads, gone, holdings = self._database.run(
            Statement("SELECT revision FROM nightside_batch_store"),
            _statement("SELECT {batch} FROM nightside_batches WHERE revision > $1", since),
            Statement("SELECT document FROM nightside_batch_files WHERE revision > $1", (since,)),
            Statement("SELECT document FROM nightside_batch_uploads WHERE revision > $1", (since,)),
            Statement("SELECT id FROM nightside_batch_gone WHERE revision > $1", (since,)),
            Statement("SELECT id, term, renewals FROM nightside_batches WHERE owner <> ''"),
        )
        return StoreChanges(
            revision,
            [_file_in(document) for (document,) in files],
            [_upload_in(document) for (document,) in uploads],
            [_row_of(each) for each in batches],
            [gone_id for (gone_id,) in gone],
            {batch_id: HoldingMark(term, renewals) for batch_id, term, renewals in holdings},
        )

    def result_sizes(self) -> list[tuple[str, ResultKind, int]]:
        """Bytes of results of batches that have not ended, by batch and kind."""
        (rows,) = self._database.run(
            Statement("SELECT batch, kind, CAST(sum(size) AS bigint) FROM nightside_batch_results GROUP BY batch, kind")
        )
        return [(batch_id, ResultKind(kind), size) for batch_id, kind, size in rows]

    def groups(self, batch_id: str, kind: ResultKind, after: int, *, with_data: bool) -> list[ResultGroup]:
        """Some groups of results after a number, in order; empty: there are no more. `with_data`: only those whose
        results are in no part, with them, one at a time."""
        text = _GROUPS_WITH_DATA if with_data else _GROUPS
        (rows,) = self._database.run(Statement(text, (batch_id, kind.value, after, 1 if with_data else _PAGE)))
        return [ResultGroup(*each) for each in rows]

    def parts(self, batch_id: str, kind: ResultKind) -> tuple[StoredPart, ...]:
        (rows,) = self._database.run(
            Statement(
                "SELECT name, size FROM nightside_batch_parts WHERE batch = $1 AND kind = $2 ORDER BY number",
                (batch_id, kind.value),
            )
        )
        return tuple(StoredPart(*each) for each in rows)

    # Files

    def put_file(self, file: StoredFile, completed: UploadInParts | None = None) -> None:
        """Store the row of a file, with the upload that it completes, if any. Raises RowOutdated, for a part as well,
        where that upload is not pending any more."""
        statements = [_ADVANCE]
        if file.upload:
            text = "SELECT id FROM nightside_batch_uploads WHERE id = $1 AND is_pending = 1"
            statements.append(Statement(text, (file.upload,), RowOutdated))
        if completed is not None:
            statements.append(_end_upload(completed))
        self._database.run(*statements, _put_file(file))

    def has_file(self, file_id: str) -> bool:
        """True if the row of a file is stored. An earlier transaction whose answer was lost is over by then, since both
        change the same row first."""
        return self._has("SELECT id FROM nightside_batch_files WHERE id = $1", file_id)

    def has_batch(self, batch_id: str) -> bool:
        """True if the row of a batch is stored, as for a file."""
        return self._has("SELECT id FROM nightside_batches WHERE id = $1", batch_id)

    def _has(self, text: str, row_id: str) -> bool:
        _, rows = self._database.run(_ADVANCE, Statement(text, (row_id,)))
        return bool(rows)

    def delete_file(self, file_id: str) -> None:
        """Delete the row of a file; a missing one changes nothing. Raises FileInUse."""
        unused = (
            "SELECT id FROM nightside_batch_store"
            " WHERE NOT EXISTS (SELECT id FROM nightside_batches WHERE input_file = $1)"
        )
        check = Statement(unused, (file_id,), FileInUse)
        self._delete("DELETE FROM nightside_batch_files WHERE id = $1", file_id, check)

    # Uploads in parts

    def put_upload(self, upload: UploadInParts) -> None:
        text = "INSERT INTO nightside_batch_uploads VALUES ($1, {revision}, 1, $2)"
        self._database.run(_ADVANCE, _statement(text, upload.id, msgspec.json.encode(upload)))

    def end_upload(self, upload: UploadInParts) -> None:
        """Store an upload that is pending no longer. Raises RowOutdated where it was so before."""
        self._database.run(_ADVANCE, _end_upload(upload))

    def delete_parts(self, file_ids: Sequence[str]) -> None:
        """Delete the rows of parts of an upload, together; a missing one changes nothing."""
        these = ", ".join(f"${number}" for number in range(1, len(file_ids) + 1))
        gone = (
            "INSERT INTO nightside_batch_gone SELECT id, {revision}, {now} FROM nightside_batch_files"
            " WHERE id IN ({these}) ON CONFLICT DO NOTHING"
        )
        deletion = "DELETE FROM nightside_batch_files WHERE id IN ({these})"
        self._database.run(
            _ADVANCE, *(_statement(text.replace("{these}", these), *file_ids) for text in (gone, deletion))
        )

    def delete_upload(self, upload_id: str) -> None:
        self._delete("DELETE FROM nightside_batch_uploads WHERE id = $1", upload_id)

    # Batches

    def put_new(self, batch: ClientBatch) -> None:
        """Store a new batch, which no gateway holds. Its input file cannot be deleted from then on. Raises
        FileMissing."""
        text = "INSERT INTO nightside_batches VALUES ($1, {revision}, 1, '', 0, 0, 0, 0, 0, $2, $3)"
        self._database.run(
            _ADVANCE,
            Statement("SELECT id FROM nightside_batch_files WHERE id = $1", (batch.input_file_id,), FileMissing),
            _statement(text, batch.id, msgspec.json.encode(batch), batch.input_file_id),
        )

    def put_batch(
        self, batch: ClientBatch, version: int, holding: BatchHolding | None = None, files: Iterable[StoredFile] = ()
    ) -> None:
        """Store a change of a batch, which becomes its version after this one, together with files that it has brought.
        One that has ended is held no longer, and its results are those files'. Raises LeaseLost for a holding that is
        none any more, and RowOutdated for another version."""
        statements = [_ADVANCE] if holding is None else [_ADVANCE, self._fence(holding)]
        text = "UPDATE nightside_batches SET document = $3, version = version + 1, revision = {revision}"
        if holding is not None:
            text += f", completed = {batch.completed}, failed = {batch.failed}"
        if batch.has_ended:
            text += ", owner = '', input_file = ''"
        text += " WHERE id = $1 AND version = $2 RETURNING id"
        values = batch.id, version, msgspec.json.encode(batch)
        statements.append(_statement(text, *values, refusal=RowOutdated))
        if batch.has_ended:
            statements += _delete_results(batch.id)
        self._database.run(*statements, *map(_put_file, files))

    def delete_batch(self, batch_id: str) -> None:
        """Delete a batch, with the results that it has where it has not ended."""
        self._delete("DELETE FROM nightside_batches WHERE id = $1", batch_id, *_delete_results(batch_id))

    # Holdings

    def take(self, batch_id: str, lapsed: HoldingMark | None) -> TakenBatch | None:
        """Hold a batch that no gateway holds, or whose holding with this mark has lapsed. None: another gateway was
        faster, or has renewed its holding. Raises BatchMissing."""
        mark = lapsed or _NO_MARK
        *_, rows = self._database.run(
            _ADVANCE,
            Statement("SELECT id FROM nightside_batches WHERE id = $1", (batch_id,), BatchMissing),
            _statement(_TAKE, batch_id, self._gateway, mark.term, mark.renewals),
        )
        if not rows:
            return None
        *fields, line_offset = rows[0]
        row = _row_of(fields)
        return TakenBatch(BatchHolding(batch_id, row.mark.term), row, line_offset)

    def renew(self, holdings: Sequence[tuple[BatchHolding, int]]) -> list[BatchHolding]:
        """Renew holdings, each with the offset in the input file before which each line has a result. Returns those
        that stand."""
        text = (
            "UPDATE nightside_batches SET renewals = renewals + 1, line_offset = $4, revision = {revision}"
            " WHERE {held} RETURNING id"
        )
        renewals = [_statement(text, *self._held(each), line_offset) for each, line_offset in holdings]
        _, *answers = self._database.run(_ADVANCE, *renewals)
        return [each for (each, _), rows in zip(holdings, answers, strict=True) if rows]

    def release(self, holding: BatchHolding) -> None:
        """Give up a holding. No error if it was lost before."""
        text = "UPDATE nightside_batches SET owner = '', revision = {revision} WHERE {held}"
        self._database.run(_ADVANCE, _statement(text, *self._held(holding)))

    # Results

    def append(self, holding: BatchHolding, kind: ResultKind, group: ResultGroup, lines: int) -> None:
        """Write results, with the number of lines that have one of this kind then. The same group may be written again,
        which changes nothing. Raises LeaseLost."""
        count = "completed" if kind is ResultKind.OUTPUT else "failed"
        self._database.run(
            self._fence(holding, f"{count} = {lines}"),
            Statement(
                "INSERT INTO nightside_batch_results VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
                (holding.batch_id, kind.value, group.number, group.size, group.unrun, group.digests, group.data),
            ),
        )

    def add_part(self, holding: BatchHolding, kind: ResultKind, last: int, part: StoredPart) -> None:
        """Take in that the results up to a group are in a part of the file. It may be told again. Raises LeaseLost."""
        self._database.run(
            self._fence(holding),
            Statement(
                "UPDATE nightside_batch_results SET data = NULL WHERE batch = $1 AND kind = $2 AND number <= $3",
                (holding.batch_id, kind.value, last),
            ),
            Statement(
                "INSERT INTO nightside_batch_parts VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
                (holding.batch_id, kind.value, last, part.name, part.size),
            ),
        )

    def _fence(self, holding: BatchHolding, change: str = "term = term") -> Statement:
        """Statement that no other holding passes, and that keeps another gateway from taking the batch until the end
        of the transaction."""
        text = "UPDATE nightside_batches SET {change} WHERE {held} RETURNING id".replace("{change}", change)
        return _statement(text, *self._held(holding), refusal=LeaseLost)

    def _held(self, holding: BatchHolding) -> tuple[str, str, int]:
        return holding.batch_id, self._gateway, holding.term

    def _delete(self, deletion: str, row_id: str, *further: Statement) -> None:
        self._database.run(
            _ADVANCE,
            *further,
            Statement("DELETE FROM nightside_batch_gone WHERE id = $1 OR at_ms < {now} - $2", (row_id, _GONE_KEPT_MS)),
            _statement("INSERT INTO nightside_batch_gone VALUES ($1, {revision}, {now})", row_id),
            Statement(deletion, (row_id,)),
        )


def _statement(text: str, *values: object, refusal: type[Refused] | None = None) -> Statement:
    """Statement with the names of parts that many statements have."""
    for name, part in (("{revision}", _REVISION), ("{batch}", _BATCH_FIELDS), ("{held}", _HELD)):
        text = text.replace(name, part)
    return Statement(text, values, refusal)


def _delete_results(batch_id: str) -> list[Statement]:
    return [
        Statement("DELETE FROM nightside_batch_results WHERE batch = $1", (batch_id,)),
        Statement("DELETE FROM nightside_batch_parts WHERE batch = $1", (batch_id,)),
    ]


def _put_file(file: StoredFile) -> Statement:
    text = (
        "INSERT INTO nightside_batch_files VALUES ($1, {revision}, $2)"
        " ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, document = excluded.document"
    )
    return _statement(text, file.id, msgspec.json.encode(file))


def _end_upload(upload: UploadInParts) -> Statement:
    text = (
        "UPDATE nightside_batch_uploads SET is_pending = 0, document = $2, revision = {revision}"
        " WHERE id = $1 AND is_pending = 1 RETURNING id"
    )
    return _statement(text, upload.id, msgspec.json.encode(upload), refusal=RowOutdated)


def _row_of(fields: Row) -> BatchRow:
    _, version, owner, term, renewals, completed, failed, document = fields
    batch = replace(_batch_in(document), completed=completed, failed=failed)
    return BatchRow(batch, version, owner, HoldingMark(term, renewals))
