"""Asks all gateways at once what they have decided, over their open streams, for an operator who looks at the whole
mesh. Answers are passed on as they come, within bounds; no decision rests on them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator

import msgspec
from msgspec import Struct, field

from controller.links import Links
from gateway.core.vocabulary import GatewayId
from mesh.clock import Clock
from mesh.control.vocabulary import Question, QuestionAnswer
from mesh.page.rows import DecisionShown, SideShown, chosen, joined, shown_at
from mesh.wire import TEXT_LENGTH_MAX

OPEN_MAX = 16
_LATEST_EVERY_NS = 2_000_000_000
_ROWS_TAKEN_MAX = 100
_ROWS_OF_A_REQUEST_MAX = 2
"""Rows of one request id that a gateway may give: two requests may share an id, one of which was refused."""
"""Most decisions taken from one gateway's answer."""
_ANSWER_S = 2.0
"""Time after which a gateway counts as having no answer; one of an older version never answers."""


class TooManyQuestions(Exception):
    """Too many other questions are being answered."""


class _Open(Struct, eq=False):
    waiting: set[GatewayId]
    found: dict[GatewayId, bytes] = field(default_factory=dict)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class GatewayQuestions:
    """Questions to gateways. All calls come from one event loop's thread."""

    def __init__(self, links: Links, answer_s: float = _ANSWER_S) -> None:
        self._links = links
        self._answer_s = answer_s
        self._open: dict[int, _Open] = {}
        self._asked = 0

    async def about(self, wanted: str) -> dict[str, object] | None:
        """Return one request as every gateway that knows it reports it, in the shape of one gateway's report; None: no
        gateway knows it. Raises TooManyQuestions."""
        if not wanted or len(wanted) > TEXT_LENGTH_MAX:
            return None
        sides = [each for found in (await self._ask(wanted)).items() for each in _side(*found)]
        if not sides:
            return None
        here, *there = sorted(sides, key=lambda each: bool(each.request.get("origin")))
        told = [{"gateway": each.request["gateway"], "request": each.request, "problem": ""} for each in there]
        words = [here.headline, here.sentence, *(each.aside for each in there)]
        return {"here": here.request, "there": told, "words": words}

    async def latest(self) -> list[DecisionShown]:
        """Return the latest decisions of all gateways, the newest first, with both ends of a forward in one row. Raises
        TooManyQuestions."""
        found = await self._ask("")
        rows = [row for gateway, text in found.items() for row in _rows(gateway, text)]
        return chosen(sorted(joined(rows), key=lambda each: each.age_ms))

    def answered(self, gateway_id: GatewayId, answer: QuestionAnswer) -> None:
        """Take in an answer; one that comes too late, or to no open question, is ignored."""
        asked = self._open.get(answer.number)
        if asked is None or gateway_id not in asked.waiting:
            return
        asked.waiting.discard(gateway_id)
        if answer.document:
            asked.found[gateway_id] = answer.document
        if not asked.waiting:
            asked.is_over.set()

    async def _ask(self, wanted: str) -> dict[GatewayId, bytes]:
        if len(self._open) >= OPEN_MAX:
            raise TooManyQuestions("too many questions are open: ask again in a moment")
        self._asked += 1
        links = [each for each in self._links.all() if each.is_registered]
        asked = self._open[self._asked] = _Open({each.gateway_id for each in links})
        number = self._asked
        try:
            for each in links:
                each.ask(Question(number, wanted))
            async with asyncio.timeout(self._answer_s):
                if asked.waiting:
                    await asked.is_over.wait()
        except TimeoutError:
            pass
        finally:
            del self._open[number]
        return asked.found


class LatestDecisions:
    """Latest known decisions of the whole mesh: asked for anew while the page is watched, and never waited for."""

    def __init__(
        self, questions: GatewayQuestions, clock: Clock, start: Callable[[Coroutine[None, None, None]], object]
    ) -> None:
        self._questions = questions
        self._clock = clock
        self._start = start
        self._rows: list[dict[str, object]] = []
        self._at_ms: dict[tuple[str, str], int] = {}
        """Time of each decision by this machine's clock, by gateway and request: kept, so that a decision does not move
        between two answers."""
        self._asked_ns: int | None = None
        self._is_asking = False

    def rows(self) -> list[dict[str, object]]:
        now_ns = self._clock.now_ns()
        if not self._is_asking and (self._asked_ns is None or now_ns - self._asked_ns >= _LATEST_EVERY_NS):
            self._asked_ns, self._is_asking = now_ns, True
            self._start(self._ask())
        return self._rows

    async def _ask(self) -> None:
        try:
            latest = await self._questions.latest()
        except TooManyQuestions:
            return
        finally:
            self._is_asking = False
        now_ms = self._clock.wall_ns() // 1_000_000
        known = self._at_ms
        self._at_ms = {_key(each): known.get(_key(each), now_ms - each.age_ms) for each in latest}
        self._rows = [shown_at(each, self._at_ms[_key(each)]) for each in latest]


def _key(decision: DecisionShown) -> tuple[str, str]:
    return decision.gateway, decision.request


def _side(gateway: GatewayId, text: bytes) -> Iterator[SideShown]:
    """Yield a gateway's answer if it is about that gateway itself."""
    try:
        side = msgspec.json.decode(text, type=SideShown)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    if side.request.get("gateway") == gateway:
        yield side


def _rows(gateway: GatewayId, text: bytes) -> list[DecisionShown]:
    """Return the decisions of a gateway's answer that are about that gateway itself: what it says of others behind it
    is left out, and so are further rows of one request than it can have."""
    try:
        rows = msgspec.json.decode(text, type=list[DecisionShown])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    kept: list[DecisionShown] = []
    counts: Counter[str] = Counter()
    for each in rows[:_ROWS_TAKEN_MAX]:
        counts[each.request] += 1
        if each.gateway == gateway and counts[each.request] <= _ROWS_OF_A_REQUEST_MAX:
            kept.append(msgspec.structs.replace(each, hops=[]))
    return kept
