"""Files of batches in S3, against two emulators."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from gateway.features.batches import s3 as s3_module
from gateway.features.batches.config import S3Config
from gateway.features.batches.s3 import PART_BYTES, READ_BYTES, S3Files
from tests.cloud.buckets import client_of_s3, new_bucket
from tests.cloud.dynamodb import NOBODY
from tests.cloud.programs import Emulator, free_port
from tests.support.batches import book_in

pytestmark = pytest.mark.needs("emulators")
LINE = b"x" * 1023 + b"\n"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in NOBODY.items():
        monkeypatch.setenv(name, secret)


@pytest.fixture(params=["running_ministack", "running_moto"])
def emulator(request: pytest.FixtureRequest) -> Emulator:
    running: Emulator = request.getfixturevalue(request.param)
    return running


@pytest.fixture
def files(emulator: Emulator) -> S3Files:
    return opened(S3Config(bucket=new_bucket(emulator), prefix="night/", endpoint=emulator.url))


def opened(config: S3Config) -> S3Files:
    made = S3Files(config)
    made.open()
    return made


def kept(files: S3Files, name: str, data: bytes = b"x") -> None:
    upload = files.begin(name)
    for at in range(0, len(data), 100_000):
        upload.write(data[at : at + 100_000])
    files.finish(upload, name)


def names(files: S3Files, emulator: Emulator) -> list[str]:
    found = client_of_s3(emulator).list_objects_v2(Bucket=files._config.bucket)
    return [each["Key"] for each in found.get("Contents", ())]


@pytest.mark.parametrize("size", [0, 1, 1023, PART_BYTES, 2 * PART_BYTES + 5])
def test_what_was_written_is_read(files: S3Files, emulator: Emulator, size: int) -> None:
    data = (LINE * (size // len(LINE) + 1))[:size]
    kept(files, "a", data)
    with files.read("a") as file:
        assert file.read() == data
    assert names(files, emulator) == ["night/a"]


def test_an_upload_holds_no_more_than_a_part(files: S3Files) -> None:
    upload = files.begin("a")
    for _ in range(3 * PART_BYTES // 100_000):
        upload.write(bytes(100_000))
        assert len(upload._waiting) < PART_BYTES
    upload.drop()


def test_lines_are_read_from_an_offset_by_ranges(files: S3Files) -> None:
    lines = [b"%d" % number + LINE for number in range(3 * READ_BYTES // len(LINE))]
    kept(files, "a", b"".join(lines))
    skipped = 1500
    with files.read("a", sum(map(len, lines[:skipped]))) as file:
        assert list(islice(file, 32)) == lines[skipped : skipped + 32]
        assert list(file) == lines[skipped + 32 :]


def test_a_read_behind_the_end_finds_nothing(files: S3Files) -> None:
    kept(files, "a", b"abc")
    with files.read("a", 3) as file:
        assert file.read() == b""


def test_a_missing_file_is_told_from_a_service_that_is_away(files: S3Files) -> None:
    with pytest.raises(FileNotFoundError, match="night/a"):
        files.read("a")
    files.delete("a")
    away = S3Files(
        S3Config(bucket="b", prefix="night/", region="us-east-1", endpoint=f"http://127.0.0.1:{free_port()}")
    )
    with pytest.raises(OSError, match="s3://b") as refused:
        away.open()
    assert not isinstance(refused.value, FileNotFoundError)


def test_an_upload_that_is_dropped_leaves_nothing(files: S3Files, emulator: Emulator) -> None:
    upload = files.begin("a")
    upload.write(bytes(PART_BYTES + 1))
    files.drop(upload, "a")
    files.drop(None, "b")
    assert names(files, emulator) == []
    uploads = client_of_s3(emulator).list_multipart_uploads(Bucket=files._config.bucket)
    assert not uploads.get("Uploads")


async def test_files_of_another_database_are_left_alone(files: S3Files, tmp_path: Path) -> None:
    one, other = (book_in(tmp_path / name) for name in ("one", "other"))
    one.folder = other.folder = files
    await one.open()
    await one.close()
    await one.open()
    await one.close()
    with pytest.raises(OSError, match="are those of another database"):
        await other.open()
    await other.close()


def test_remains_of_a_crash_are_deleted(files: S3Files, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    named, other = f"file-{'a' * 24}", f"file-{'b' * 24}"
    for name in (named, f"{named}.2-7-ab", other, "notes"):
        kept(files, name)
    client_of_s3(emulator).put_object(Bucket=files._config.bucket, Key=other, Body=b"")
    for is_shared in (False, True):
        files.sweep(lambda: [named], is_shared=is_shared)
        assert len(names(files, emulator)) == 5, "another gateway may be about to name it"
    monkeypatch.setattr(s3_module, "STALE_S", -1)
    files.sweep(lambda: [named], is_shared=True)
    assert names(files, emulator) == [other, f"night/{named}", f"night/{named}.2-7-ab", "night/notes"]
