"""Settings of the `batches` section of a region file. They decide nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from gateway.features.section import FeatureSection, WrittenFile
from mesh.faults import FileFault
from mesh.postgresql_config import PostgresqlConfig, postgresql_faults
from mesh.values import MEBIBYTE, SECOND_NS, format_duration, is_this_machine_s

LEASE_MIN_NS = SECOND_NS
_TENANT_UPLOADS_MAX = 4


class S3Config(Struct, frozen=True):
    """Bucket of files. Credentials are found as AWS's own tools find them."""

    bucket: str
    """Name of the bucket, in the jurisdiction of this region."""
    prefix: str
    """Beginning of the names of all objects, which ends in a slash. Each database has one of its own."""
    region: str | None = None
    """AWS region of the bucket. None: found as AWS's own tools find it."""
    endpoint: str | None = None
    """URL of the service, in place of AWS's own. None: AWS's own."""


class BatchesConfig(FeatureSection, frozen=True):
    """Batches of OpenAI's and Anthropic's APIs: requests in a file, executed as class `batch`. Off unless a folder, or
    a database and a bucket, are named."""

    folder: Path | None = None
    """Folder of the files and of the batches' state; it holds clients' text. None: only with `postgresql` and `s3`, or
    no batches."""
    postgresql: PostgresqlConfig | None = None
    """PostgreSQL database of the batches' state, which the gateways of one jurisdiction may share; it holds clients'
    text. None: a SQLite file in the folder, for one gateway."""
    s3: S3Config | None = None
    """S3 bucket of the files, for the gateways that share the state; it holds clients' text. None: the folder."""
    lease_ns: int = 15 * SECOND_NS
    """Time without a sign of the gateway that runs a batch after which another one that shares the state takes it
    over."""
    file_max_bytes: int = 200 * MEBIBYTE
    """Largest file that a client may upload."""
    inline_max_bytes: int = 64 * MEBIBYTE
    """Largest body that hands in a batch with all its requests, as in Anthropic's API. One at a time is in memory."""
    tenant_max_bytes: int = 20 * 1024 * MEBIBYTE
    """Total size of one tenant's files above which it may upload no further one."""
    folder_max_bytes: int = 100 * 1024 * MEBIBYTE
    """Total size of all files above which no client may upload a further one."""
    lines_max: int = 50_000
    """Most requests in one batch."""
    line_max_bytes: int = MEBIBYTE
    """Largest request in a batch."""
    answer_max_bytes: int = 4 * MEBIBYTE
    """Largest answer to a request of a batch; a larger one becomes an error."""
    requests_max: int = 32
    """Requests of all batches that wait or run at once."""
    urgent_share: float = 0.1
    """Share of `requests_max`, rounded down, that may run as class `interactive` while a batch would miss its window,
    in the last quarter of it. 0: none."""
    uploads_max: int = 8
    """Uploads at once."""
    tenant_uploads_max: int = _TENANT_UPLOADS_MAX
    """Uploads of one tenant at once."""
    tenant_pending_uploads_max: int = 16
    """Uploads in parts of one tenant that are pending; a further one is refused."""
    batches_max: int = 8
    """Batches that run at once."""
    tenant_batches_max: int = 2
    """Batches of one tenant that run at once."""
    tenant_unfinished_max: int = 100
    """Batches of one tenant that wait or run; a further one is refused."""
    tenant_ended_max: int = 1_000
    """Batches of one tenant that have ended; a further one takes the place of the first, whose files stay."""
    tenant_files_max: int = 10_000
    """Files of one tenant; a further upload is refused."""
    keep_ns: int = 30 * 24 * 3600 * SECOND_NS
    """Time after which a file, or a batch that has ended, is deleted."""

    @property
    def is_on(self) -> bool:
        return self.folder is not None or (self.postgresql is not None and self.s3 is not None)

    def secret_files(self) -> Iterator[Path]:
        if self.postgresql is not None and self.postgresql.password_file is not None:
            yield self.postgresql.password_file

    def faults(self, file: WrittenFile) -> Iterator[FileFault]:
        if self.folder is None and (self.postgresql is None) is not (self.s3 is None):
            beside = "postgresql" if self.s3 is None else "s3"
            yield FileFault("batches.folder", f"is missing: batches.{beside} alone has no place for all of it")
        if self.folder is not None and self.postgresql is None and self.s3 is not None:
            yield FileFault("batches.s3", "is for batches.postgresql; a folder alone holds its files as well")
        if self.folder is not None and self.postgresql is not None and self.s3 is not None:
            yield FileFault("batches.folder", "is not used, since batches.postgresql and batches.s3 are set")
        if self.postgresql is not None:
            yield from postgresql_faults(self.postgresql, "batches.postgresql", insecure=file.insecure)
        if self.s3 is not None:
            yield from _s3_faults(self.s3, insecure=file.insecure)
        if self.lease_ns < LEASE_MIN_NS:
            yield FileFault("batches.lease", f"should be at least {format_duration(LEASE_MIN_NS)}")
        is_written = self.tenant_uploads_max != _TENANT_UPLOADS_MAX
        if is_written and self.tenant_uploads_max > self.uploads_max:
            yield FileFault("batches.tenant_uploads_max", "should be at most batches.uploads_max")


def _s3_faults(config: S3Config, *, insecure: bool) -> Iterator[FileFault]:
    if not config.prefix.strip("/") or not config.prefix.endswith("/"):
        yield FileFault("batches.s3.prefix", "should be a name that ends in a slash, such as `nightside/`")
    endpoint = config.endpoint
    if endpoint is None or (endpoint.startswith("http://") and (insecure or is_this_machine_s(endpoint))):
        return
    if endpoint.startswith("http://"):
        told = "is beyond this machine, without TLS; to allow that, write `insecure: true`"
        yield FileFault("batches.s3.endpoint", told)
    elif not endpoint.startswith("https://"):
        yield FileFault("batches.s3.endpoint", "should begin with https:// or http://")
