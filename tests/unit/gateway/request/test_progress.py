from __future__ import annotations

from gateway.core.kernel.events import LegProgress
from gateway.core.vocabulary import PoolName, ReplicaId, RequestId, replica_target
from gateway.request.progress import ProgressBoard
from tests.support.core import SECOND

HERE, THERE = replica_target(ReplicaId("d0")), replica_target(ReplicaId("d1"))
CHAT, CODE = PoolName("chat"), PoolName("code")
ONE, TWO = RequestId("one"), RequestId("two")


def test_events_count_as_the_tokens_that_they_have_been_seen_to_hold() -> None:
    board = ProgressBoard()
    board.learn(HERE, 50, 100)
    board.begins(ONE, 1, CHAT, HERE, lambda: 10)
    board.begins(TWO, 1, CHAT, THERE, lambda: 10)
    assert board.sample(CHAT) == (LegProgress(ONE, 1, 20), LegProgress(TWO, 1, 10))
    board.ends(ONE, 1)
    assert board.sample(CHAT) == (LegProgress(TWO, 1, 10),)


def test_an_attempt_that_ends_late_takes_nothing_from_the_next_one() -> None:
    board = ProgressBoard()
    board.begins(ONE, 1, CHAT, HERE, lambda: 5)
    board.begins(ONE, 2, CHAT, THERE, lambda: 3)
    board.ends(ONE, 1)
    assert board.sample(CHAT) == (LegProgress(ONE, 2, 3),)


def test_no_engine_is_believed_that_claims_too_much() -> None:
    board = ProgressBoard()
    for events, tokens in ((0, 5), (5, 0), (1, 10**9)):
        board.learn(HERE, events, tokens)
    board.begins(ONE, 1, CHAT, HERE, lambda: 1)
    assert board.sample(CHAT)[0].output_tokens == 64


def test_a_pool_hears_of_its_own_alone() -> None:
    board = ProgressBoard()
    board.begins(ONE, 1, CHAT, HERE, lambda: 1)
    board.begins(TWO, 1, CODE, THERE, lambda: 2)
    board.begins(RequestId("no pool's"), 1, None, THERE, lambda: 3)
    assert board.sample(CHAT) == (LegProgress(ONE, 1, 1),)
    assert board.sample(CODE) == (LegProgress(TWO, 1, 2),)
    assert board.sample(PoolName("other")) == ()


def test_whose_streams_are_left_whole_is_remembered_for_a_while_and_for_so_many() -> None:
    board = ProgressBoard()
    board.leave_whole(HERE, "/chat", 0)
    assert board.is_left_whole(HERE, "/chat", 599 * SECOND)
    assert not board.is_left_whole(HERE, "/chat", 600 * SECOND)
    assert not board.is_left_whole(HERE, "/completions", 0)
    assert not board.is_left_whole(THERE, "/chat", 0)
    for number in range(10_000):
        board.leave_whole(replica_target(ReplicaId(str(number))), "/chat", 0)
        assert len(board._left_whole_until_ns) <= 4096
    assert board.is_left_whole(replica_target(ReplicaId("9999")), "/chat", 0)
