from __future__ import annotations

import pytest

from gateway.engines.exposition import BadProbe, Sample, first_present, samples


def test_labels_are_a_map_whatever_their_values_hold() -> None:
    page = rb'waiting{model_name="a \"} 99 b",engine="0"} 3.0 1795242205878' + b"\r\n"
    assert list(samples(page, b"waiting")) == [Sample({b"model_name": rb"a \"} 99 b", b"engine": b"0"}, 3.0)]


def test_names_that_begin_alike_or_stand_elsewhere_are_passed_over() -> None:
    page = b'# HELP waiting many\nwaiting_total 7\nthe_waiting 8\nwaiting 1\nx{y="waiting 9"} 2\nwaiting 3'
    assert [each.value for each in samples(page, b"waiting")] == [1, 3]


def test_a_page_may_begin_with_what_is_looked_for() -> None:
    assert [each.value for each in samples(b"waiting 5\n", b"waiting")] == [5]
    assert list(samples(b"", b"waiting")) == []


def test_the_first_name_that_has_any_sample_counts() -> None:
    assert [each.value for each in first_present(b"new 1\nold 2\n", (b"newest", b"new", b"old"))] == [1]
    assert first_present(b"else 1\n", (b"new", b"old")) == []


@pytest.mark.parametrize("line", [b"waiting{engine=0} 3", b'waiting{engine="0" 3', b"waiting \n", b"waiting many\n"])
def test_a_sample_that_cannot_be_read_is_never_passed_over(line: bytes) -> None:
    with pytest.raises(BadProbe):
        list(samples(line, b"waiting"))
