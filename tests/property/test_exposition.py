"""Metrics pages are searched once for all names; a plain reading, line by line, must give the same result."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.engines.dialects import read_metrics
from gateway.engines.exposition import BadProbe, find, lines_about, samples
from loadgen.bench.relay.engine import metrics_page

NAMES = (b"vllm:num_requests_waiting", b"vllm:num_requests_running", b"num_requests_waiting", b"vllm:kv", b"vllm:k")
WANTED = lines_about(NAMES)
LABEL_LETTERS = b"_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
Plain = list[tuple[dict[bytes, bytes], float]] | str

names = st.sampled_from([*NAMES, b"vllm:num_requests_waiting_by_reason", b"vllm", b"# HELP vllm:kv", b" vllm:kv", b""])
quoted = st.lists(st.sampled_from([b"0", b"a", b"{", b"}", b",", b" ", b"=", b"\\", b'\\"', b"\\\\", b"\\n", b"\xff"]))
label = st.builds(
    lambda name, value, end: name + b'="' + b"".join(value) + b'"' + end,
    st.sampled_from([b"engine", b"model_name", b"_", b" dp_rank", b"0", b""]),
    quoted,
    st.sampled_from([b"", b",", b" ,", b", ", b" "]),
)
braces = st.one_of(st.just(b""), st.lists(label, max_size=3).map(lambda parts: b"{" + b"".join(parts) + b"}"))
numbers = st.sampled_from([b"4.0", b"1e3", b"-1", b"NaN", b"+Inf", b"-Inf", b"Infinity", b"1_0", b"many", b"0x1", b""])
ends = st.sampled_from([b"", b" 1795242205878", b' # {trace_id="}"} 0.5 1.0', b"\r", b" {"])
shaped = st.tuples(names, braces, st.sampled_from([b" ", b"\t", b""]), numbers, ends).map(b"".join)
PIECES = (*NAMES, b"{", b"}", b'"', b"\\", b"=", b",", b" ", b"engine", b"1", b"\n", b"\x00")
lines = st.one_of(shaped, st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
pages = st.builds(lambda parts, cut: b"\n".join(parts)[: -cut or None], st.lists(lines, max_size=8), st.integers(0, 9))


def plain_samples(page: bytes, name: bytes) -> Plain:
    """Samples read line by line, every label checked; or the reason why the page cannot be read."""
    found = []
    for line in page.split(b"\n"):
        if not line.startswith(name) or line[len(name) : len(name) + 1] not in {b"{", b" ", b"\t"}:
            continue
        held: dict[bytes, bytes] = {}
        rest = line[len(name) :]
        if rest[:1] == b"{":
            rest = rest[1:]
            while rest[:1] != b"}":
                read = plain_label(rest)
                if read is None:
                    return "a sample's labels are malformed"
                key, value, rest = read
                held[key] = value
            rest = rest[1:]
        try:
            found.append((held, float(rest.split()[0])))
        except (IndexError, ValueError):
            return "a sample has no number"
    return found


def plain_label(text: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Name of the first label, its value as written, and the rest of the text after its comma."""
    name, equals, text = text.lstrip().partition(b'="')
    if not equals or not name or name[:1].isdigit() or name.strip(LABEL_LETTERS):
        return None
    at = 0
    while text[at : at + 1] != b'"':
        at += 2 if text[at : at + 1] == b"\\" else 1
        if at >= len(text):
            return None
    after = text[at + 1 :].lstrip()
    return name, text[:at], after.removeprefix(b",")


def searched(page: bytes, name: bytes) -> Plain:
    try:
        return [(dict(each.labels), each.value) for each in samples(find(page, WANTED), name)]
    except BadProbe as error:
        return str(error)


def text_of(read: Plain) -> str:
    """Text of a result, for comparison: NaN never equals itself."""
    return read if isinstance(read, str) else repr([(held, "NaN" if math.isnan(n) else n) for held, n in read])


@given(pages)
@example(b'vllm:kv{a="1"}{b="2"} 3')
@example(b'vllm:kv{a="1"}3')
@example(b"vllm:kv{} 3\nvllm:kv{ } 3")
@example(b'vllm:num_requests_running{engine="1"} 1\nvllm:kv 2\nvllm:num_requests_running{engine="0"} 3')
def test_one_search_finds_what_a_plain_reading_finds(page: bytes) -> None:
    for name in NAMES:
        assert text_of(searched(page, name)) == text_of(plain_samples(page, name))


@given(st.integers(0, 20_000))
def test_a_whole_page_cut_anywhere_is_read_alike(cut: int) -> None:
    page = metrics_page()[:cut]
    for name in NAMES:
        assert text_of(searched(page, name)) == text_of(plain_samples(page, name))


@given(st.one_of(pages, st.binary(max_size=200)))
def test_whatever_a_page_says_it_is_read_or_refused_in_words(page: bytes) -> None:
    try:
        (reading,) = read_metrics(page)
    except BadProbe as error:
        assert str(error)  # noqa: PT017 - that there are words is the point
    else:
        assert reading.waiting >= 0
        assert 0 <= reading.kv_usage <= 1
