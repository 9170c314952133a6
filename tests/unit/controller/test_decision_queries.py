from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import msgspec
import pytest

from controller.decision_queries import OPEN_MAX, GatewayQuestions, LatestDecisions, TooManyQuestions
from controller.links import Link, Links
from gateway.core.vocabulary import GatewayId
from mesh.control.vocabulary import QuestionAnswer
from mesh.page.rows import DecisionShown, SideShown
from mesh.silence import SilenceDetector
from tests.fakes.attached import hello
from tests.support.clock import StillClock
from tests.support.core import EU, SECOND, US

US_1, EU_1 = GatewayId("us-1"), GatewayId("eu-1")


def two_links() -> Links:
    links = Links()
    for name, place in (("us-1", US), ("eu-1", EU)):
        link = Link(hello(name, place), 0, SilenceDetector(SECOND))
        link.is_registered = True
        links.put(link)
    return links


def side(gateway: str, origin: str) -> bytes:
    record = {"gateway": gateway, "origin": origin}
    return msgspec.json.encode(SideShown(record, f"{gateway}: the headline", f"{gateway}: why", f"At {gateway}: why"))


def decision(gateway: str, request: str, age_ms: int) -> DecisionShown:
    return DecisionShown(gateway, request, age_ms)


async def answers(questions: GatewayQuestions, links: Links, **documents: bytes) -> None:
    """Answer each gateway's question once it is asked; gateways without a document stay silent."""
    for link in links.all():
        await link.asked_more.wait()
        link.asked_more.clear()
        question = link.asked.popleft()
        if (document := documents.get(link.gateway_id.replace("-", "_"))) is not None:
            questions.answered(link.gateway_id, QuestionAnswer(question.number, document))


async def test_every_gateway_is_asked_and_the_one_that_the_client_spoke_to_comes_first() -> None:
    links = two_links()
    questions = GatewayQuestions(links, answer_s=3600)
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(questions.about("r-1"))
        await answers(questions, links, us_1=side("us-1", "eu-1"), eu_1=side("eu-1", ""))
    assert asked.result() == {
        "here": {"gateway": "eu-1", "origin": ""},
        "there": [{"gateway": "us-1", "request": {"gateway": "us-1", "origin": "eu-1"}, "problem": ""}],
        "words": ["eu-1: the headline", "eu-1: why", "At us-1: why"],
    }


async def test_a_gateway_tells_of_a_request_in_no_name_but_its_own() -> None:
    links = two_links()
    questions = GatewayQuestions(links, answer_s=3600)
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(questions.about("r-1"))
        await answers(questions, links, us_1=side("eu-1", ""), eu_1=side("eu-1", "us-1"))
    explained = asked.result()
    assert explained is not None
    assert explained["here"] == {"gateway": "eu-1", "origin": "us-1"}
    assert explained["there"] == []


async def test_whoever_does_not_answer_is_not_waited_for_longer_and_nonsense_is_left_out() -> None:
    links = two_links()
    questions = GatewayQuestions(links, answer_s=0)
    assert await questions.about("r-1") is None
    questions = GatewayQuestions(links, answer_s=3600)
    for link in links.all():
        link.asked.clear()
        link.asked_more.clear()
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(questions.about("r-1"))
        await answers(questions, links, us_1=b"\xff{", eu_1=b'{"request": 3}')
    assert asked.result() is None


async def test_an_answer_that_comes_late_twice_or_from_whom_nobody_asked_changes_nothing() -> None:
    links = two_links()
    questions = GatewayQuestions(links, answer_s=3600)
    questions.answered(US_1, QuestionAnswer(1, b"[]"))
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(questions.latest())
        await asyncio.sleep(0)
        questions.answered(GatewayId("ap-1"), QuestionAnswer(1, msgspec.json.encode([decision("ap-1", "r-9", 1)])))
        questions.answered(
            US_1, QuestionAnswer(1, msgspec.json.encode([decision("us-1", "r-1", 5), decision("eu-1", "x", 1)]))
        )
        questions.answered(US_1, QuestionAnswer(1, msgspec.json.encode([decision("us-1", "r-2", 5)])))
        questions.answered(EU_1, QuestionAnswer(1, msgspec.json.encode([decision("eu-1", "r-3", 2)])))
    assert [each.request for each in asked.result()] == ["r-3", "r-1"], "newest first, each of itself alone"


async def test_open_questions_are_bounded_and_so_is_what_waits_for_a_slow_gateway() -> None:
    links = two_links()
    questions = GatewayQuestions(links, answer_s=3600)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(questions.latest()) for _ in range(OPEN_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyQuestions):
            await questions.about("r-1")
        assert all(len(each.asked) == 8 for each in links.all())
        for each in running:
            each.cancel()


async def test_the_latest_are_asked_for_now_and_then_and_one_stays_where_it_was_in_time() -> None:
    clock, links = StillClock(), two_links()
    questions = GatewayQuestions(links, answer_s=3600)
    works: list[Coroutine[None, None, None]] = []
    latest = LatestDecisions(questions, clock, works.append)
    assert latest.rows() == latest.rows() == []
    assert len(works) == 1, "one at a time"

    async def answered(age_ms: int) -> list[dict[str, object]]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(works.pop())
            text = msgspec.json.encode([decision("us-1", "r-1", age_ms)])
            tasks.create_task(answers(questions, links, us_1=text, eu_1=b""))
        return latest.rows()

    first = await answered(1000)
    assert [each["request"] for each in first] == ["r-1"]
    assert not works, "it was asked just now"
    clock.now += 2_000_000_000
    latest.rows()
    assert await answered(2999) == first


async def latest_of(**documents: bytes) -> list[DecisionShown]:
    links = two_links()
    questions = GatewayQuestions(links, answer_s=3600)
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(questions.latest())
        await answers(questions, links, **documents)
    return asked.result()


async def test_a_decision_says_nothing_in_the_name_of_a_gateway_behind_it() -> None:
    forged = DecisionShown("eu-1", "r-1", 0, words="forged")
    for origin in ("", "ghost"):
        row = DecisionShown("us-1", "r-1", 0, origin=origin, hops=[forged])
        (shown,) = await latest_of(us_1=msgspec.json.encode([row]), eu_1=b"")
        assert (shown.gateway, shown.hops) == ("us-1", [])


async def test_rows_of_one_request_are_few_and_no_gateway_is_behind_itself() -> None:
    rows = [decision("us-1", "r-1", 0), *[DecisionShown("us-1", "r-1", 0, origin="us-1")] * 50]
    shown = await latest_of(us_1=msgspec.json.encode(rows), eu_1=b"")
    assert len(shown) == 2
    assert [each.hops for each in shown] == [[], []]


async def test_an_answer_that_nests_too_deeply_is_nonsense_like_any() -> None:
    opening, closing = b'{"gateway":"us-1","request":"r","age_ms":0,"hops":[', b"]}"
    deep = b"[" + opening * 4000 + closing * 4000 + b"]"
    (shown,) = await latest_of(us_1=deep, eu_1=msgspec.json.encode([decision("eu-1", "r-2", 0)]))
    assert shown.gateway == "eu-1"
    links = two_links()
    questions = GatewayQuestions(links, answer_s=3600)
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(questions.about("r-1"))
        await answers(questions, links, us_1=b'{"x":' * 100_000, eu_1=side("eu-1", ""))
    assert asked.result() is not None
