"""Files of batches in an S3 bucket. Uploads are sent and files are read in parts, so that none is in memory as a whole.

Every call blocks: the callers use threads. Each request has a time limit.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from gateway.features.batches.config import S3Config
from gateway.features.batches.files import STALE_S, OpenUpload, is_remains

PART_BYTES = 8 * 1024 * 1024
"""Bytes of an upload that are sent at once; S3 takes parts of 5 MiB to 5 GiB, but for the last."""
READ_BYTES = 1024 * 1024
"""Bytes that are read at once. No answer is left open between two reads, however long the reader takes."""
_CONNECT_S = 3.0
_READ_S = 20.0
_TRIES = 3
_CONNECTIONS = 16
_GONE = ("404", "NoSuchKey", "NotFound", "NoSuchUpload")
_PAST_END = ("416", "InvalidRange")


class S3Upload:
    """Object on its way into the bucket: one request if it is small, else a multipart upload."""

    def __init__(self, client: Any, place: dict[str, str]) -> None:
        self._client = client
        self._place = place
        self._waiting = bytearray()
        self._upload_id = ""
        self._parts: list[dict[str, object]] = []

    def write(self, data: bytes) -> None:
        self._waiting += data
        while len(self._waiting) >= PART_BYTES:
            self._send(bytes(self._waiting[:PART_BYTES]))
            del self._waiting[:PART_BYTES]

    def _send(self, part: bytes) -> None:
        with _in_words(self._place):
            if not self._upload_id:
                self._upload_id = self._client.create_multipart_upload(**self._place)["UploadId"]
            number = len(self._parts) + 1
            sent = self._client.upload_part(**self._place, UploadId=self._upload_id, PartNumber=number, Body=part)
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})

    def finish(self) -> None:
        if not self._upload_id:
            with _in_words(self._place):
                self._client.put_object(**self._place, Body=bytes(self._waiting))
            return
        if self._waiting:
            self._send(bytes(self._waiting))
            self._waiting.clear()
        with _in_words(self._place):
            self._client.complete_multipart_upload(
                **self._place, UploadId=self._upload_id, MultipartUpload={"Parts": self._parts}
            )

    def drop(self) -> None:
        if self._upload_id:
            with suppress(FileNotFoundError), _in_words(self._place):
                self._client.abort_multipart_upload(**self._place, UploadId=self._upload_id)


class _S3Reader(io.RawIOBase):
    """Object that is read from an offset on, by ranges."""

    def __init__(self, client: Any, place: dict[str, str], offset: int) -> None:
        self._client = client
        self._place = place
        self._offset = offset
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def look(self) -> None:
        """Read the first piece. Raises FileNotFoundError."""
        last = self._offset + READ_BYTES - 1
        try:
            with _in_words(self._place):
                answer = self._client.get_object(**self._place, Range=f"bytes={self._offset}-{last}")
                piece = answer["Body"].read()
        except EOFError:
            piece = b""
        self._offset += len(piece)
        self._piece = memoryview(piece)

    def readinto(self, buffer: Any) -> int:
        if not self._piece:
            self.look()
        count = min(len(buffer), len(self._piece))
        buffer[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count


class S3Files:
    """Files under a prefix of a bucket, which gateways may share."""

    is_apart = True

    def __init__(self, config: S3Config) -> None:
        self._config = config
        self._client: Any = None

    def open(self) -> None:
        """Find credentials and the bucket."""
        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"mode": "standard", "total_max_attempts": _TRIES},
            max_pool_connections=_CONNECTIONS,
            user_agent_extra="nightside-gateway",
        )
        session = boto3.session.Session()
        where = {"Bucket": self._config.bucket}
        with _in_words(where):
            self._client = session.client(
                "s3", region_name=self._config.region, endpoint_url=self._config.endpoint, config=config
            )
            self._client.head_bucket(**where)

    def begin(self, name: str) -> S3Upload:
        return S3Upload(self._client, self._place(name))

    def finish(self, upload: OpenUpload, name: str) -> None:  # noqa: ARG002
        assert isinstance(upload, S3Upload), "it was begun here"
        upload.finish()

    def drop(self, upload: OpenUpload | None, name: str) -> None:  # noqa: ARG002
        if isinstance(upload, S3Upload):
            upload.drop()

    def read(self, name: str, offset: int = 0) -> BinaryIO:
        reader = _S3Reader(self._client, self._place(name), offset)
        reader.look()
        return io.BufferedReader(reader, READ_BYTES)

    def delete(self, name: str) -> None:
        place = self._place(name)
        with _in_words(place):
            self._client.delete_object(**place)

    def sweep(self, wanted: Callable[[], Iterable[str]], *, is_shared: bool) -> None:  # noqa: ARG002
        """Delete old remains only: others may write to a bucket, whatever the state's place."""
        found = list(self._stale())
        names = set(wanted())
        for name in found:
            if is_remains(name, names):
                self.delete(name)

    def _stale(self) -> Iterator[str]:
        """Names of the objects that are old by the clock of S3."""
        where = {"Bucket": self._config.bucket, "Prefix": self._config.prefix}
        with _in_words(where):
            for page in self._client.get_paginator("list_objects_v2").paginate(**where):
                now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
                for each in page.get("Contents", ()):
                    if now - each["LastModified"] > timedelta(seconds=STALE_S):
                        yield each["Key"].removeprefix(self._config.prefix)

    def scratch(self) -> BinaryIO:
        return tempfile.TemporaryFile()

    def _place(self, name: str) -> dict[str, str]:
        return {"Bucket": self._config.bucket, "Key": f"{self._config.prefix}{name}"}


@contextmanager
def _in_words(place: dict[str, str]) -> Iterator[None]:
    """Raise OSError for each failure of S3; EOFError for a read behind the end of an object."""
    name = "/".join(place.values())
    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _PAST_END:
            raise EOFError(name) from error
        if code in _GONE:
            raise FileNotFoundError(f"s3://{name}: {error}") from error
        raise OSError(f"s3://{name}: {error}") from error
    except BotoCoreError as error:
        raise OSError(f"s3://{name}: {error}") from error
