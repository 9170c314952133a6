from __future__ import annotations

import pytest

from gateway.engines.exposition import BadProbe, MetricSample, find, first_present, lines_about, samples

WANTED = lines_about((b"waiting", b"new", b"newest", b"old"))


def read(page: bytes, name: bytes = b"waiting") -> list[MetricSample]:
    return samples(find(page, WANTED), name)


def values(page: bytes) -> list[float]:
    return [each.value for each in read(page)]


def test_labels_are_a_map_whatever_their_values_hold() -> None:
    page = rb'waiting{model_name="a \"} 99 b",engine="0"} 3.0 1795242205878' + b"\r\n"
    assert read(page) == [MetricSample({b"model_name": rb"a \"} 99 b", b"engine": b"0"}, 3.0)]


def test_names_that_begin_alike_or_stand_elsewhere_are_passed_over() -> None:
    page = b'# HELP waiting many\nwaiting_total 7\nthe_waiting 8\nwaiting 1\nx{y="waiting 9"} 2\nwaiting 3'
    assert values(page) == [1, 3]
    assert [each.value for each in read(b"new 1\nnewest 2\nnewer 3\n", b"newest")] == [2]


def test_a_page_may_begin_with_what_is_looked_for() -> None:
    assert values(b"waiting 5\n") == [5]
    assert read(b"") == []


def test_the_first_name_that_has_any_sample_counts() -> None:
    lines = find(b"old 2\nnew 1\n", WANTED)
    assert [each.value for each in first_present(lines, (b"newest", b"new", b"old"))] == [1]
    assert first_present(find(b"else 1\n", WANTED), (b"new", b"old")) == []


@pytest.mark.parametrize(
    "line",
    [
        b"waiting{engine=0} 3",
        b'waiting{engine="0" 3',
        b'waiting{engine="0"',
        b'waiting{engine="0}\n"} 3',
        b'waiting{engine="0"}{engine="1"} 3',
        b"waiting{,} 3",
        b"waiting \n",
        b"waiting many\n",
    ],
)
def test_a_sample_that_cannot_be_read_is_never_passed_over(line: bytes) -> None:
    with pytest.raises(BadProbe):
        read(line)


def test_only_what_is_asked_for_must_be_readable() -> None:
    assert values(b"old many\nwaiting 1\n") == [1]


def test_labels_too_long_to_be_remembered_are_read_all_the_same() -> None:
    for value in (b"x" * 600, b"\\\\" * 300_000):
        assert read(b'waiting{model_name="%s"} 3\n' % value) == [MetricSample({b"model_name": value}, 3.0)]
