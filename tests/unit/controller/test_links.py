from __future__ import annotations

from controller.links import Link, Links
from gateway.core.vocabulary import ControlVersion, GatewayId
from mesh.control.vocabulary import Announcement, Hello
from mesh.silence import SilenceDetector
from tests.support.core import US, policy


def link() -> Link:
    hello = Hello(GatewayId("us"), US, ControlVersion(0, 0), Announcement(()), policy(US))
    return Link(hello, 0, SilenceDetector(6_000_000_000))


def test_a_stream_answers_for_the_end_of_the_registered_one_that_it_replaced_also_through_others() -> None:
    links, registered, second, third = Links(), link(), link(), link()
    registered.is_registered = True
    for each in (registered, second, third):
        links.put(each)
    assert not registered.follows_registered
    assert second.follows_registered
    assert third.follows_registered
    assert [links.drop(each) for each in (registered, second, third)] == [False, False, True]


def test_one_that_replaced_none_that_was_registered_does_not() -> None:
    links, first, second = Links(), link(), link()
    links.put(first)
    links.put(second)
    assert not second.follows_registered
