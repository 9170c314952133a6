"""Answers in one piece tell of no first token: how soon the next request that yields follows the one before."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.core import events
from gateway.core.kernel.replicas import READ_NS_PER_BYTE
from gateway.core.vocabulary import ServiceClass
from tests.support.core import MS, SECOND, Desk, desk, profile, replica_spec, started

PROMPT = "a prompt of so many bytes" * 40


def arrive(
    one: Desk, name: str, *, stream: bool = False, service_class: ServiceClass = ServiceClass.BATCH
) -> list[str]:
    asked = replace(profile(name, prompt=f"{name} {PROMPT}"), service_class=service_class, stream=stream)
    return started(one.tell(events.RequestArrived(asked, one.now_ns + 600 * SECOND)))


def reading_ns(one: Desk, name: str) -> int:
    return READ_NS_PER_BYTE * replace(profile(name, prompt=f"{name} {PROMPT}")).prompt_bytes


def one_replica(slots: int = 64) -> Desk:
    return desk(replicas=[replace(replica_spec("r0"), slots=slots)])


def test_waiting_requests_follow_each_other_as_fast_as_prompts_are_read_without_a_probe() -> None:
    one = one_replica()
    assert arrive(one, "b0") == ["r0"]
    for number in range(1, 5):
        assert arrive(one, f"b{number}") == [], "a prompt is being read"
    took_ns = reading_ns(one, "b0")
    assert started(one.wait(took_ns - 1 * MS)) == []
    assert started(one.wait(1 * MS)) == [], "no request waited when b0 started, so nothing looks before the next event"
    assert started(one.probe(running=1)) == ["r0"]
    for _ in range(3):
        assert started(one.wait(took_ns - 1 * MS)) == []
        assert started(one.wait(1 * MS)) == ["r0"]
    assert not one.core.waiting.count


def test_nothing_follows_while_requests_wait_in_the_engine() -> None:
    one = one_replica()
    arrive(one, "b0")
    arrive(one, "b1")
    one.probe(running=1, waiting=1)
    assert started(one.wait(reading_ns(one, "b0") * 10)) == []
    assert started(one.probe(running=1)) == ["r0"]


def test_a_stream_that_is_being_read_is_waited_for() -> None:
    one = one_replica()
    assert arrive(one, "s0", stream=True) == ["r0"]
    assert arrive(one, "b1") == []
    assert started(one.wait(reading_ns(one, "s0") * 10)) == []
    assert started(one.first_token("s0")) == ["r0"]


def test_an_engine_that_is_known_to_read_slowly_has_more_time() -> None:
    one = one_replica()
    for number in range(20):
        assert arrive(one, f"s{number}", stream=True, service_class=ServiceClass.INTERACTIVE) == ["r0"]
        one.wait(500 * MS)
        one.first_token(f"s{number}")
        one.finish(f"s{number}")
        one.probe()
    assert one.core.replicas.read_ns_per_byte > 10 * READ_NS_PER_BYTE
    arrive(one, "b0")
    arrive(one, "b1")
    arrive(one, "b2")
    one.wait(1)
    assert started(one.wait(reading_ns(one, "b0") * 10)) == []


def test_replicas_that_have_left_are_not_looked_at() -> None:
    one = one_replica()
    arrive(one, "b0")
    for name in ("b1", "b2"):
        arrive(one, name)
    one.wait(reading_ns(one, "b0"))
    assert started(one.probe(running=1)) == ["r0"]
    one.tell(events.AssignmentApplied(one.core.assignment_version + 1, (replica_spec("r9"),), ()))
    one.probe()
    assert started(one.wait(reading_ns(one, "b0") * 2)) == []
