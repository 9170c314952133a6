from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.batches.forms import (
    BESIDE_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEAD_FIELDS_MAX,
    OPTIONS_MAX,
    PARTS_MAX,
    FormReader,
    PartBegins,
)

TYPE = 'multipart/form-data; boundary="edge"'
HEAD = b'--edge\r\ncontent-disposition: form-data; name="file"'


def form(parts: list[tuple[str, str | None, bytes]]) -> bytes:
    body = b""
    for name, filename, data in parts:
        more = f'; filename="{filename}"' if filename is not None else ""
        body += f'--edge\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data + b"\r\n"
    return body + b"--edge--\r\n"


def read(body: bytes, cuts: list[int]) -> tuple[list[tuple[str, str | None, bytes]], bool]:
    reader = FormReader(TYPE)
    found: list[tuple[str, str | None, bytes]] = []
    places = [0, *sorted(cuts), len(body)]
    for begin, end in pairwise(places):
        for event in reader.feed(body[begin:end]):
            if isinstance(event, PartBegins):
                found.append((event.name, event.filename, b""))
            else:
                name, filename, data = found[-1]
                found[-1] = (name, filename, data + event)
    return found, reader.is_over


PARTS = st.lists(
    st.tuples(
        st.sampled_from(["file", "purpose"]),
        st.sampled_from([None, "a.jsonl", ""]),
        st.one_of(
            st.binary(max_size=60), st.sampled_from([b"\r\n--edg", b"\r\n\r\n--", b"--edge--", b"\r\n--edge"[:-1]])
        ),
    ),
    max_size=4,
)


@given(PARTS, st.data())
def test_parts_are_read_however_they_arrive(parts: list[tuple[str, str | None, bytes]], data: st.DataObject) -> None:
    body = form(parts)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=8))
    assert read(body, cuts) == (parts, True)


@given(st.data())
def test_a_form_that_is_cut_is_not_over(data: st.DataObject) -> None:
    body = form([("purpose", None, b"batch"), ("file", "a", b"x" * 100)])
    cut = data.draw(st.integers(0, len(body) - len(b"-\r\n")))
    assert not read(body[:cut], [])[1]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"--edge?!", "malformed at byte 6"),
        (b"x" * 5_000, "malformed at byte 0"),
        (HEAD + b"\r\n\r\n" + b"x" * 10_000 + b"\r\n--edge\r\n: x", "malformed at byte 10065"),
        (b"--edge\r\ncontent-type: text/plain\r\n\r\nx", "part 1 has no name"),
        (HEAD + b"\r\n\r\n\r\n--edge\r\n\r\n", "part 2 has no name"),
        (HEAD.replace(b"; ", b"; a=b" * OPTIONS_MAX + b"; ") + b"\r\n\r\n", "part 1 has no name"),
        (b"--edge\r\n" + b"a: b\r\n" * (HEAD_FIELDS_MAX + 1), "Maximum header count"),
        (b"--edge\r\n" + b"x" * (HEAD_BYTES_MAX + 1), "Maximum header size|longer than 8192 bytes"),
        (HEAD + (b"\r\na: " + b"x" * 5_000) * 2, "the head of part 1 is longer than 8192 bytes"),
        (HEAD + b"\r\n\r\n\r\n--edge" + b" " * 2 * BESIDE_BYTES_MAX, "bytes outside its parts"),
        (b"\r\n" * BESIDE_BYTES_MAX, "bytes outside its parts"),
        (form([]) + b"x" * 2 * BESIDE_BYTES_MAX, "bytes outside its parts"),
        (form([(str(each), None, b"") for each in range(PARTS_MAX + 1)]), "more than 32 parts"),
        (HEAD + b"\r\n\r\n" + b"\r\n--edgeX" * (PARTS_MAX + 1), "more than 32 parts"),
    ],
)
@pytest.mark.parametrize("size", [7, 100_000])
def test_a_malformed_form_is_refused(body: bytes, told: str, size: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ValueError, match=told):
        read(body, list(range(0, len(body), size)))
    assert not caplog.records, "clients write no log"


def test_a_form_within_its_limits_is_read() -> None:
    parts = [(str(each), None, b"x") for each in range(PARTS_MAX - 1)]
    filename = "n" * (HEAD_BYTES_MAX - len(HEAD) - 20)
    assert read(form([*parts, ("file", filename, bytes(100_000))]), []) == (
        [*parts, ("file", filename, bytes(100_000))],
        True,
    )


@pytest.mark.parametrize(
    ("told", "filename"),
    [
        ("form-data; name=file; filename=a.jsonl", "a.jsonl"),
        ('form-data;filename="a; name=\\"b\\";.jsonl";Name="file"', 'a; name=\\"b\\";.jsonl'),
        ("form-data; a=b; name=file" + ";" * 1_000, None),
    ],
)
def test_a_name_is_read_however_it_is_written(told: str, filename: str | None) -> None:
    body = f"--edge\r\nContent-Disposition: {told}\r\n\r\nx\r\n--edge--\r\n".encode()
    assert read(body, []) == ([("file", filename, b"x")], True)


def test_a_file_is_handed_on_as_it_arrives() -> None:
    reader = FormReader(TYPE)
    reader.feed(HEAD + b"\r\n\r\n")
    assert reader.feed(bytes(100_000)) == [bytes(100_000)]
    assert reader.feed(b"x\r\n--ed") == [b"x"]
    assert reader.feed(b"it") == [b"\r\n--edit"]


@pytest.mark.parametrize(
    "told",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/mixed; boundary=x",
        "multipart/form-data; boundary=" + "x" * 71,
        "multipart/form-data" + "; a=b" * OPTIONS_MAX + "; boundary=edge",
    ],
)
def test_another_type_is_refused(told: str) -> None:
    with pytest.raises(ValueError):
        FormReader(told)
