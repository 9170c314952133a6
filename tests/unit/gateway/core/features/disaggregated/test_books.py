from __future__ import annotations

import pytest

from gateway.core.features.disaggregated import books
from gateway.core.features.disaggregated.books import Entry, Group, Worker
from gateway.core.features.disaggregated.predictor import Facts
from gateway.core.vocabulary import ReplicaId, RequestId


def worker(slots: int = 8) -> Worker:
    made = Worker(ReplicaId("w0"), 0, Group("dp"))
    made.slots = slots
    return made


def send(to: Worker, key: str) -> Entry:
    entry = Entry(Facts(RequestId(key), 100), 1, 0, 0)
    books.dispatch(entry, to)
    return entry


@pytest.mark.parametrize("begins", [False, True])
def test_ours_are_not_inherited_whether_or_not_their_first_token_was_told(begins: bool) -> None:
    one = worker()
    books.inherit(one, running=4, waiting=0, kv_tokens=400)
    ours = [send(one, f"q{number}") for number in range(4)]
    for entry in ours if begins else ():
        books.start(entry)
    books.inherit(one, running=4, waiting=0, kv_tokens=400)
    assert one.inherited == 4, "it was asked before ours came"
    books.inherit(one, running=5, waiting=1, kv_tokens=600)
    assert one.inherited == 2
    books.end(ours[0])
    books.inherit(one, running=5, waiting=0, kv_tokens=600)
    assert one.inherited == 2, "it only drains"
    books.inherit(one, running=3, waiting=0, kv_tokens=300)
    assert (one.inherited, one.inherited_tokens, one.free) == (0, 0, 5)


def test_who_was_sent_last_and_has_ended_counts_no_more() -> None:
    one = worker()
    books.inherit(one, running=1, waiting=0, kv_tokens=100)
    first = send(one, "a")
    books.inherit(one, running=2, waiting=0, kv_tokens=200)
    last = send(one, "b")
    assert (one.in_flight, one.fresh) == (2, 1)
    books.end(first)
    assert (one.in_flight, one.fresh) == (1, 1)
    books.end(last)
    assert (one.in_flight, one.fresh) == (0, 0)


def test_a_cap_counts_ours_and_slots_count_everybody() -> None:
    one = worker(slots=4)
    books.inherit(one, running=1, waiting=1, kv_tokens=100)
    assert one.free == 2
    one.cap = 1
    assert one.free == 1
    send(one, "a")
    assert (one.free, one.free_of(2)) == (0, 0)
    one.cap = 9
    assert one.free == 1
