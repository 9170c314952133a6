from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from gateway.core.vocabulary import GatewayId
from gateway.records.audit_files import ChainedFiles, ChainSettings, hash_of
from gateway.records.audit_verify import VerifiedFile, gaps_between, verify_file
from tests.support.core import US

GATEWAY = GatewayId("us-1")


def chained(
    folder: Path,
    *,
    file_bytes_max: int = 1 << 20,
    files_max: int | None = None,
    deleted: list[Path] | None = None,
    gateway_id: GatewayId = GATEWAY,
) -> ChainedFiles:
    return ChainedFiles(
        ChainSettings(folder, file_bytes_max, files_max, syncs=True),
        gateway_id,
        US,
        wall_time=lambda: "2026-03-01T12:00:00Z",
        on_deleted=(deleted if deleted is not None else []).append,
    )


def lines(count: int, start: int = 0) -> list[bytes]:
    return [msgspec.json.encode({"kind": "request", "number": start + number}) for number in range(count)]


def written(folder: Path, count: int, **options: int) -> list[Path]:
    files = chained(folder, **options)  # type: ignore[arg-type]
    files.write(lines(count))
    files.close()
    return sorted(folder.iterdir())


def numbers(*paths: Path) -> list[int]:
    """Numbers of the written records, in order."""
    found = [msgspec.json.decode(line) for path in paths for line in path.read_bytes().splitlines()]
    return [each["number"] for each in found if each["kind"] == "request"]


def problems(*paths: Path) -> list[str]:
    checked = [verify_file(path) for path in paths]
    return [f"{each.path.name}:{each.line}" for file in checked for each in file.broken] + [
        each.problem for each in gaps_between(checked)
    ]


def test_each_line_carries_the_hash_of_the_one_before(tmp_path: Path) -> None:
    (path,) = written(tmp_path, 3)
    raw = path.read_bytes().splitlines()
    assert [msgspec.json.decode(line)["prev"] for line in raw] == ["", *map(hash_of, raw[:-1])]
    checked = verify_file(path)
    assert (checked.broken, checked.lines, checked.head) == ((), 4, hash_of(raw[-1]))
    assert path.stat().st_mode & 0o077 == 0o040


@pytest.mark.parametrize(
    "tamper",
    [
        lambda raw: [raw[0], raw[1].replace(b'"number":0', b'"number":7'), *raw[2:]],
        lambda raw: [*raw[:2], *raw[3:]],
        lambda raw: [*raw[:3], raw[1], *raw[3:]],
        lambda raw: [raw[0], raw[2], raw[1], *raw[3:]],
        lambda raw: [raw[0].replace(b"us-east-1", b"eu-west-1"), *raw[1:]],
        lambda raw: [*raw[:2], b"{}", *raw[2:]],
        lambda raw: [*raw[:2], b"", *raw[2:]],
        lambda raw: raw[1:],
    ],
    ids=["changed", "taken out", "put in twice", "swapped", "header changed", "foreign", "empty line", "no header"],
)
def test_whatever_is_done_to_a_line_shows(tmp_path: Path, tamper: object) -> None:
    (path,) = written(tmp_path, 4)
    assert problems(path) == []
    path.write_bytes(b"\n".join(tamper(path.read_bytes().splitlines())) + b"\n")  # type: ignore[operator]
    assert problems(path) != []


def test_a_full_file_is_followed_by_another_that_continues_its_chain(tmp_path: Path) -> None:
    paths = written(tmp_path, 200, file_bytes_max=4096)
    assert len(paths) > 3
    assert all(path.stat().st_size <= 4096 for path in paths)
    assert numbers(*paths) == list(range(200))
    assert problems(*paths) == []
    assert problems(*reversed(paths)) == [], "in any order"


def test_a_missing_file_and_a_shortened_one_show(tmp_path: Path) -> None:
    paths = written(tmp_path, 200, file_bytes_max=4096)
    (gap,) = problems(paths[0], *paths[2:])
    assert "number 2 was not given" in gap
    paths[1].write_bytes(b"".join(paths[1].read_bytes().splitlines(keepends=True)[:-1]))
    (cut,) = problems(*paths)
    assert "its end was changed or cut off" in cut
    assert problems(*paths[2:]) == [], "what follows the first file given is whole"


def test_a_restart_continues_the_chain_in_a_file_of_its_own(tmp_path: Path) -> None:
    written(tmp_path, 3)
    again = chained(tmp_path)
    again.write(lines(2, start=3))
    again.close()
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == ["us-1-00000001.audit", "us-1-00000002.audit"]
    assert numbers(*paths) == [0, 1, 2, 3, 4]
    assert problems(*paths) == []


def test_a_line_torn_by_a_power_cut_is_told_and_does_not_break_the_chain(tmp_path: Path) -> None:
    (path,) = written(tmp_path, 3)
    path.write_bytes(path.read_bytes() + b'{"kind":"requ')
    chained(tmp_path).close()
    paths = sorted(tmp_path.iterdir())
    checked = [verify_file(each) for each in paths]
    assert [each.was_cut_off for each in checked] == [True, False]
    assert problems(*paths) == []


def test_a_file_whose_header_never_reached_the_disk_is_begun_again(tmp_path: Path) -> None:
    written(tmp_path, 3)
    (tmp_path / "us-1-00000002.audit").write_bytes(b'{"kind":"fi')
    chained(tmp_path).close()
    paths = sorted(tmp_path.iterdir())
    assert len(paths) == 2
    assert problems(*paths) == []


def test_gateways_that_share_a_folder_have_chains_of_their_own(tmp_path: Path) -> None:
    for gateway_id in ("us-1", "us-1-b", "us-1"):
        files = chained(tmp_path, gateway_id=GatewayId(gateway_id))
        files.write(lines(2))
        files.close()
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == ["us-1-00000001.audit", "us-1-00000002.audit", "us-1-b-00000001.audit"]
    assert problems(*paths) == []


def test_nothing_is_deleted_unless_the_operator_said_so(tmp_path: Path) -> None:
    deleted: list[Path] = []
    files = chained(tmp_path / "all", file_bytes_max=2048, deleted=deleted)
    files.write(lines(200))
    files.close()
    assert deleted == []
    few = chained(tmp_path / "few", file_bytes_max=2048, files_max=2, deleted=deleted)
    few.write(lines(200))
    few.close()
    left = sorted((tmp_path / "few").iterdir())
    assert len(left) == 2
    assert len(deleted) > 2
    assert problems(*left) == []
    assert numbers(*left)[-1] == 199


@contextmanager
def disk_full_at(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_nothing_and_leaves_no_half_line(tmp_path: Path) -> None:
    files = chained(tmp_path)
    files.write(lines(2))
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    with disk_full_at(size + 150):
        for _ in range(2):
            with pytest.raises(OSError, match="too large"):
                files.write(lines(2, start=2) if files.unwritten_bytes == 0 else [])
            assert path.stat().st_size == size
    assert files.unwritten_bytes > 0
    files.write(lines(1, start=4))
    files.close()
    assert files.unwritten_bytes == 0
    assert numbers(path) == [0, 1, 2, 3, 4]
    assert problems(path) == []


def test_a_disk_too_full_for_a_new_file_leaves_none_behind(tmp_path: Path) -> None:
    files = chained(tmp_path, file_bytes_max=600)
    with disk_full_at(100), pytest.raises(OSError, match="too large"):
        files.write(lines(20))
    (path,) = tmp_path.iterdir()
    files.write([])
    files.close()
    paths = sorted(tmp_path.iterdir())
    assert len(paths) > 2
    assert numbers(*paths) == list(range(20))
    assert problems(*paths) == []
    assert path in paths


def test_a_file_deleted_under_the_writer_is_followed_by_a_new_one(tmp_path: Path) -> None:
    files = chained(tmp_path)
    files.write(lines(2))
    next(tmp_path.iterdir()).unlink()
    files.write(lines(1, start=2))
    files.close()
    (path,) = tmp_path.iterdir()
    assert (path.name, numbers(path)) == ("us-1-00000002.audit", [2])


def test_what_is_no_audit_file_is_said_to_be_none(tmp_path: Path) -> None:
    for content in (b"", b"\x00\x01\n", b'{"kind":"file","format":99}\n', b"[]\n"):
        path = tmp_path / "x"
        path.write_bytes(content)
        checked: VerifiedFile = verify_file(path)
        assert len(checked.broken) == 1
        assert checked.header is None


def test_a_folder_that_cannot_be_written_is_known_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        chained(tmp_path / "file")


def test_nothing_is_written_once_it_is_closed(tmp_path: Path) -> None:
    """The chain may be another process's by then."""
    files = chained(tmp_path)
    files.write(lines(1))
    files.close()
    with pytest.raises(OSError, match="are closed"):
        files.write(lines(1, start=1))
    assert numbers(*tmp_path.iterdir()) == [0]
    assert files.left() == lines(1, start=1)


def test_two_never_write_one_chain(tmp_path: Path) -> None:
    first = chained(tmp_path, file_bytes_max=600)
    first.write(lines(10))
    second = chained(tmp_path)
    assert "another process writes the audit chain" in second.fault
    with pytest.raises(BlockingIOError, match="another process"):
        second.write(lines(1, start=10))
    assert len(list(tmp_path.iterdir())) > 1, "the lock goes on with the files"
    first.close()
    second.write([])
    second.close()
    paths = sorted(tmp_path.iterdir())
    assert (numbers(*paths), problems(*paths), second.fault) == (list(range(11)), [], "")
