from __future__ import annotations

from controller.dns.route53.changes import Action, RecordChange, batches_of, changes_to
from controller.dns.route53.record_sets import ELSEWHERE, Alias, RecordSet

POOL = RecordSet("pool.m.", "A", "192.0.2.1", 5, ("192.0.2.1",), is_multivalue=True)
TOP = RecordSet("m.", "A", "elsewhere", alias=Alias("Z", "pool.m."), location=ELSEWHERE)
OLD_POOL = RecordSet("old.m.", "A", "192.0.2.2", 5, ("192.0.2.2",), is_multivalue=True)


def test_whoever_is_led_to_is_there_before_and_goes_after() -> None:
    led_elsewhere = RecordSet("m.", "A", "elsewhere", alias=Alias("Z", "old.m."), location=ELSEWHERE)
    also = RecordSet("also.m.", "A", "x", alias=Alias("Z", "old.m."), location=ELSEWHERE)
    assert [str(each) for each in changes_to([OLD_POOL, led_elsewhere, also], [POOL, TOP])] == [
        "+ pool.m. 5 A 192.0.2.1",
        "~ m. A alias of pool.m. for clients in *",
        "- also.m. A alias of old.m. for clients in *",
        "- old.m. 5 A 192.0.2.2",
    ]


def test_https_records_are_written_after_the_aliases_that_they_lead_to_and_go_before_them() -> None:
    pool = RecordSet("r.nearest.m.", "A", "192.0.2.1", 5, ("192.0.2.1",), is_multivalue=True)
    target = RecordSet("nearest.r.m.", "A", "elsewhere", alias=Alias("Z", "r.nearest.m."), location=ELSEWHERE)
    leads = RecordSet("r.m.", "HTTPS", ttl_s=5, values=("1 nearest.r.m.",))
    for found in ([leads, target, pool], [pool, target, leads], [target, leads, pool]):
        gone = [each.record_set for each in changes_to(found, [])]
        assert gone == [leads, target, pool]
    itself = RecordSet("r.m.", "HTTPS", ttl_s=5, values=("1 .",))
    assert [str(each) for each in changes_to([leads, target, pool], [itself])] == [
        "~ r.m. 5 HTTPS 1 .",
        "- nearest.r.m. A alias of r.nearest.m. for clients in *",
        "- r.nearest.m. 5 A 192.0.2.1",
    ]


def test_what_tells_clients_apart_in_another_way_makes_room_first() -> None:
    plain = RecordSet("m.", "A", ttl_s=5, values=("192.0.2.66",))
    assert changes_to([plain, POOL], [POOL, TOP]) == [
        RecordChange(Action.DELETE, plain),
        RecordChange(Action.CREATE, TOP),
    ]


def test_what_is_as_it_should_be_is_left_alone() -> None:
    assert changes_to([TOP, POOL], [POOL, TOP]) == []


def test_no_batch_has_more_records_or_characters_than_are_taken() -> None:
    one = RecordChange(Action.UPSERT, POOL)
    assert [len(each) for each in batches_of([one] * 1200, 100)] == [499, 499, 202]
    wide = RecordChange(Action.CREATE, RecordSet("t.m.", "TXT", ttl_s=5, values=("x" * 4_000,)))
    assert [len(each) for each in batches_of([wide] * 9, 500)] == [7, 2]
    assert list(batches_of([], 100)) == []
