from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.batches.multipart import MultipartParser, PartBegins, PartEnds

TYPE = 'multipart/form-data; boundary="edge"'


def form(parts: list[tuple[str, str | None, bytes]]) -> bytes:
    body = b""
    for name, filename, data in parts:
        more = f'; filename="{filename}"' if filename is not None else ""
        body += f'--edge\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data + b"\r\n"
    return body + b"--edge--\r\n"


def read(body: bytes, cuts: list[int]) -> tuple[list[tuple[str, str | None, bytes]], bool]:
    parser = MultipartParser(TYPE)
    found: list[tuple[str, str | None, bytes]] = []
    places = [0, *sorted(cuts), len(body)]
    for begin, end in pairwise(places):
        for event in parser.feed(body[begin:end]):
            if isinstance(event, PartBegins):
                found.append((event.name, event.filename, b""))
            elif isinstance(event, bytes):
                name, filename, data = found[-1]
                found[-1] = (name, filename, data + event)
            else:
                assert isinstance(event, PartEnds)
    return found, parser.is_over


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
    "body",
    [
        b"--edge?!",
        b"--edge\r\ncontent-type: text/plain\r\n\r\nx",
        b"--edge\r\n" + b"x" * 9000,
    ],
)
def test_a_malformed_form_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read(body, [])


@pytest.mark.parametrize("told", ["", "application/json", "multipart/form-data", "multipart/mixed; boundary=x"])
def test_another_type_is_refused(told: str) -> None:
    with pytest.raises(ValueError):
        MultipartParser(told)
