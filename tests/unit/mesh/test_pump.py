"""The pump under a core that knows nothing of gateways: its events and effects are words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mesh.clock import Clock
from mesh.pump import Pump
from mesh.steps import Crash, Observer, Step, Subscriptions


class StillClock(Clock):
    def now_ns(self) -> int:
        return 1_000


class Echo:
    """Core that answers a word with itself, and fails on `fail`."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.wakeup_ns: int | None = None
        self.wakeup_asked = asyncio.Event()

    def handle(self, event: str, now_ns: int) -> list[str]:
        self.told.append(event)
        assert event != "fail", "counted wrong"
        return [event]

    def next_wakeup_ns(self) -> int | None:
        self.wakeup_asked.set()
        return self.wakeup_ns


class Line(Pump[str, str]):
    """Pump that records the effects it performs; on `twice` it submits a further word from inside the step, on `fall`
    it fails.
    """

    def __init__(
        self, core: Echo, observers: Iterable[Observer[str, str]] = (), clock: Clock | None = None, tail_steps: int = 9
    ) -> None:
        self.crashes: list[Crash[str, str]] = []
        self.performed: list[str] = []
        self.stops = 0
        super().__init__(
            core,
            clock or StillClock(),
            "time passed",
            observers=observers,
            on_crash=self.crashes.append,
            tail_steps=tail_steps,
        )

    def perform(self, effect: str) -> None:
        assert effect != "fall", "cannot be performed"
        if effect == "twice":
            self.submit("again")
        self.performed.append(effect)

    def stopped(self) -> None:
        self.stops += 1


class Watcher:
    """Observer that keeps the steps it is told, and fails over one word."""

    def __init__(self, fails_over: str = "") -> None:
        self.seen: list[tuple[int, str, list[str]]] = []
        self._fails_over = fails_over
        self.subscriptions: Subscriptions[str, str] = {Step: self._step_taken}

    def _step_taken(self, step: Step[str, str], told: Step[str, str]) -> None:
        assert told is step
        if step.event == self._fails_over:
            raise ValueError("no such label")
        self.seen.append((step.now_ns, step.event, list(step.effects or ())))

    @property
    def events(self) -> list[str]:
        return [event for _, event, _ in self.seen]


async def test_what_is_submitted_inside_a_step_waits_its_turn() -> None:
    core = Echo()
    line = Line(core)
    line.submit("twice")
    assert core.told == line.performed == ["twice", "again"]


class TestObserving:
    async def test_they_see_each_step_once_and_in_order_after_it_was_performed(self) -> None:
        first, second = Watcher(), Watcher()
        line = Line(Echo(), [first, second])
        line.submit("twice")
        line.submit("b")
        assert (line.performed, first.seen) == (["twice", "again", "b"], [])
        await asyncio.sleep(0)
        line.submit("c")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert first.seen == second.seen == [(1_000, each, [each]) for each in ("twice", "again", "b", "c")]

    async def test_an_observer_is_told_what_is_of_the_types_that_it_subscribes_to(self) -> None:
        class Loud(str):
            """A word of another type."""

            __slots__ = ()

        class Shouting(Echo):
            def handle(self, event: str, now_ns: int) -> list[str]:
                return [Loud("LOUD")] if event == "louder" else super().handle(event, now_ns)

        everything, loud, other = Watcher(), Watcher(), Watcher()
        heard: list[tuple[str, str]] = []
        loud.subscriptions = {Loud: lambda step, told: heard.append((step.event, told))}
        other.subscriptions = {int: lambda *_: heard.append(("none", "is a number"))}
        line = Line(Shouting(), [other, loud, everything])
        for word in ("a", Loud("b"), "louder", "c"):
            line.submit(word)
        line.tell_observers()
        assert everything.events == ["a", "b", "louder", "c"]
        assert heard == [("b", "b"), ("b", "b"), ("louder", "LOUD")], "an event, its effect, and an effect alone"

    async def test_they_are_told_before_whatever_comes_in_after_the_step(self) -> None:
        """A page of metrics that is requested after a step counts that step."""
        watcher = Watcher()
        Line(Echo(), [watcher]).submit("a")
        asked: list[list[str]] = []
        asyncio.get_running_loop().call_soon(lambda: asked.append(watcher.events))
        await asyncio.sleep(0)
        assert asked == [["a"]]

    async def test_whoever_rests_on_what_they_know_may_have_them_told_at_once(self) -> None:
        watcher = Watcher()
        line = Line(Echo(), [watcher])
        line.submit("a")
        line.tell_observers()
        assert watcher.events == ["a"]
        line.submit("b")
        await asyncio.sleep(0)
        assert watcher.events == ["a", "b"]

    async def test_the_last_steps_are_told_at_the_close_and_no_timer_is_left(self) -> None:
        core, watcher = Echo(), Watcher()
        core.wakeup_ns = 10**15
        line = Line(core, [watcher])
        line.submit("a")
        timer = line._timer
        line.close()
        assert watcher.events == ["a"]
        assert timer is not None
        assert timer.cancelled()

    async def test_a_turn_with_very_many_steps_does_not_hold_them_all_back(self) -> None:
        watcher = Watcher()
        line = Line(Echo(), [watcher])
        words = [str(number) for number in range(2_000)]
        for word in words:
            line.submit(word)
        assert len(watcher.events) > 1_000
        await asyncio.sleep(0)
        assert watcher.events == words


class TestFailing:
    async def test_the_tail_is_handed_over_with_the_fatal_step_last(self) -> None:
        for fatal, why in (("fail", "counted wrong"), ("fall", "cannot be performed")):
            core, watcher = Echo(), Watcher()
            line = Line(core, [watcher])
            for word in ("a", fatal, "b"):
                line.submit(word)
            (crash,) = line.crashes
            assert str(crash.error).startswith(why)
            assert [(step.event, step.effects) for step in crash.tail] == [("a", ["a"]), (fatal, None)]
            assert (core.told, watcher.events) == (["a", fatal], ["a"])
            assert (line.stops, line.failed.is_set()) == (1, True)

    async def test_the_tail_has_a_bound(self) -> None:
        line = Line(Echo(), tail_steps=3)
        for word in (*"abcdefgh", "fail"):
            line.submit(word)
        (crash,) = line.crashes
        assert [step.event for step in crash.tail] == ["f", "g", "h", "fail"]

    async def test_a_failing_observer_is_a_failure_too(self) -> None:
        broken, behind = Watcher("b"), Watcher()
        line = Line(Echo(), [broken, behind])
        for word in "abc":
            line.submit(word)
        assert not line.failed.is_set()
        await asyncio.sleep(0)
        (crash,) = line.crashes
        assert str(crash.error) == "no such label"
        assert [(step.event, step.effects) for step in crash.tail] == [(each, [each]) for each in "abc"]
        assert broken.events == ["a"]
        assert behind.events == ["a", "b", "c"], "what was performed is still told to whoever can hear it"

    async def test_so_is_that_of_whoever_an_observer_hands_on_to(self) -> None:
        line = Line(Echo())
        line.submit("a")
        line.fail(OSError("no room"))
        line.submit("b")
        (crash,) = line.crashes
        assert str(crash.error) == "no room"
        assert [(step.event, step.effects) for step in crash.tail] == [("a", ["a"])]
        assert line.performed == ["a"]

    async def test_the_first_failure_is_the_one(self) -> None:
        line = Line(Echo(), [Watcher("a")])
        line.submit("a")
        line.submit("fail")
        (crash,) = line.crashes
        assert str(crash.error) == "no such label"
        assert [step.event for step in crash.tail] == ["a"]
        assert line.stops == 1


class TestTimer:
    async def test_time_passes_when_the_core_asked_for_it(self) -> None:
        core = Echo()
        core.wakeup_ns = 0
        passed = asyncio.Event()

        class Sleeper(Line):
            def perform(self, effect: str) -> None:
                if effect == "time passed":
                    core.wakeup_ns = None
                    passed.set()

        Sleeper(core, clock=Clock()).submit("a")
        await passed.wait()
        assert core.told == ["a", "time passed"]

    async def test_what_is_posted_while_it_stops_reaches_no_core(self) -> None:
        class Ending(Line):
            def stopped(self) -> None:
                super().stopped()
                self.post("leg ended")

        core = Echo()
        line = Ending(core)
        line.submit("fail")
        line.submit("late")
        assert core.told == ["fail"]
        assert line.performed == []

    async def test_a_timer_that_fires_early_only_arms_the_next(self) -> None:
        core = Echo()
        line = Line(core)
        core.wakeup_ns = 1_000
        line.submit("a")
        core.wakeup_ns = 1_001
        core.wakeup_asked.clear()
        await core.wakeup_asked.wait()
        assert core.told == ["a"]
        await asyncio.sleep(0)
        assert line._timer is not None
        line.close()

    async def test_an_earlier_wakeup_moves_the_timer_and_a_later_one_does_not(self) -> None:
        core = Echo()
        line = Line(core)
        core.wakeup_ns = 10**12
        line.submit("a")
        far = line._timer
        core.wakeup_ns = 2 * 10**12
        line.submit("b")
        assert line._timer is far
        core.wakeup_ns = 10**11
        line.submit("c")
        assert line._timer is not far
        assert far is not None
        assert far.cancelled()
        line.close()
