"""Generates what users ask, from a seed: conversations with growing histories, trees of thoughts, bursts, and arrival
times.

It says what is sent, how long users think and at which rate they arrive; it must know no clock, no socket and no event
loop.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Protocol, TypedDict, runtime_checkable

from loadgen.passages import BlockText

_VOCABULARY = """
able about above account across action after again agree allow almost along answer apply around arrive back
basic because become before begin below better between board bring build call carry case cause change check
choose city clear close come common compare contain copy could country cover create current date decide depend
detail differ direct down draw early either else enough equal even event every exact example expect explain
extra fact few field figure file find first follow form found free full further general give good great group
grow half happen hard help here high hold home hour house idea include inside issue item join just keep kind
know large last later learn least leave length less letter level life light like limit line list little local
long look main make many mark matter mean measure might minute miss model month more most move much name near
need never next night note number often once only open order other outside over page pair part pass path
people perhaps place plain plan point possible present press problem prove public question quick quite rather
reach read ready real reason record region rest right round rule same save second see seem send sentence serve
several shall short should show side simple since small some sort sound source space stand start state still
stop story such system table take teach tell term test than there thing think three through time together
total toward travel turn under unit until usual value various view voice wait walk want watch water week weigh
well where which while whole wide wish with within without word work world would write year young
"""
_WORDS = _VOCABULARY.split()


Questions = Sequence[tuple[str, ...]]
"""Questions of a file, each with its turns; empty if questions are generated."""


class Message(TypedDict):
    """One entry of a chat request's `messages`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class LengthSpread:
    """A log-normal quantity: most draws lie near the median, a few lie far above it; clamped to its limits."""

    median: float
    sigma: float
    minimum: float
    maximum: float

    def draw(self, rng: random.Random) -> float:
        return min(self.maximum, max(self.minimum, rng.lognormvariate(math.log(self.median), self.sigma)))

    def draw_int(self, rng: random.Random) -> int:
        return round(self.draw(rng))


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """Shape of the conversations (SkyWalker §5.1, multi-turn); a word is about one and a half tokens."""

    applications: int = 4
    """Number of applications; each has a system prompt that all its users share."""
    system_prompt_words: int = 300
    profile_words: int = 60
    """Words of a user's profile in the system prompt, the same in all of the user's conversations."""
    turns: LengthSpread = LengthSpread(median=4, sigma=0.5, minimum=1, maximum=10)
    question_words: LengthSpread = LengthSpread(median=40, sigma=0.7, minimum=4, maximum=300)
    output_tokens: LengthSpread = LengthSpread(median=60, sigma=0.4, minimum=16, maximum=150)
    think_s: LengthSpread = LengthSpread(median=1.5, sigma=0.6, minimum=0.2, maximum=8)


@dataclass(frozen=True, slots=True)
class WorkloadStep:
    """One request of a program, and what to expect of its answer."""

    text: str
    """Text that the step adds to the messages before it."""
    output_tokens: int
    after: int | None = None
    """The earlier step whose answer this one waits for and continues; None continues from the opening."""
    think_s: float = 0.0
    """Think time between the moment at which the step could be sent and its sending."""
    passage: BlockText | None = None
    """Whole recorded prompt of a trace, used in place of the accumulated messages."""
    answer_s_min: float = 0.0
    """Minimum time from sending until the steps that wait for the answer may start."""


@dataclass(frozen=True, slots=True)
class Program:
    """Unit of one user's work: steps that share their beginnings. Steps that wait for no other run at once."""

    program_id: str
    user_id: str
    session_key: str
    """Key that keeps the program's requests together under consistent hashing."""
    opening: str
    """System prompt of the application: instructions, examples."""
    steps: tuple[WorkloadStep, ...]
    """Steps in an order in which no step stands before the one it waits for."""
    tenant: str = ""
    """Tenant named by a trace; if empty, that of the client that runs the program."""

    def roots(self) -> list[int]:
        return [number for number, step in enumerate(self.steps) if step.after is None]

    def children(self) -> dict[int, list[int]]:
        """Steps that wait for each step."""
        found: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            if step.after is not None:
                found.setdefault(step.after, []).append(number)
        return found

    def messages(self, number: int, replies: Mapping[int, str]) -> list[Message]:
        """Messages sent for a step, given the answers to the steps that it continues."""
        path = [self.steps[number]]
        if (recorded := path[0].passage) is not None:
            return [Message(role="user", content=recorded.text())]
        said: list[Message] = [Message(role="user", content=path[0].text)]
        while (before := path[-1].after) is not None:
            path.append(self.steps[before])
            said += [
                Message(role="assistant", content=replies[before]),
                Message(role="user", content=path[-1].text),
            ]
        if self.opening:
            said.append(Message(role="system", content=self.opening))
        return said[::-1]


class Workload(Protocol):
    """Source of users' programs."""

    def programs(self, user_id: str) -> Iterator[Program]:
        """One user's programs, without end; the same for one seed, however fast the answers come."""
        ...


@runtime_checkable
class Recorded(Workload, Protocol):
    """Workload whose programs have recorded arrival times."""

    def recorded(self) -> Iterator[tuple[float, Program]]:
        """Seconds from the beginning and the program that arrived then, in order of time."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """One question, and what to expect of its answer."""

    question: str
    output_tokens: int
    think_s: float
    """Time that the user thinks before asking."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Questions of one user to one application; each is sent with the whole conversation before it."""

    conversation_id: str
    user_id: str
    application: str
    system_prompt: str
    turns: tuple[Turn, ...]

    def program(self) -> Program:
        """Conversation as a chain of steps."""
        steps = (
            WorkloadStep(turn.question, turn.output_tokens, number - 1 if number else None, turn.think_s)
            for number, turn in enumerate(self.turns)
        )
        return Program(self.conversation_id, self.user_id, self.user_id, self.system_prompt, tuple(steps))

    def messages(self, replies: Sequence[str]) -> list[Message]:
        """Messages sent for the next turn, given the replies to the turns before it."""
        assert len(replies) < len(self.turns), "every turn has been answered"
        said = [Message(role="system", content=self.system_prompt)]
        for turn, reply in zip(self.turns, replies, strict=False):
            said.append(Message(role="user", content=turn.question))
            said.append(Message(role="assistant", content=reply))
        said.append(Message(role="user", content=self.turns[len(replies)].question))
        return said


class MultiTurnWorkload:
    """Users and their conversations; a user's texts depend on the seed alone, however fast the answers come."""

    def __init__(self, config: WorkloadConfig, *, seed: int, questions: Questions = ()) -> None:
        self._config = config
        self._seed = seed
        self._questions = questions
        self._prompts = [self._system_prompt(application) for application in range(config.applications)]

    def conversations(self, user_id: str) -> Iterator[Conversation]:
        """One user's conversations, without end. Between conversations a user is no more than a name and a number."""
        return (self._conversation(user_id, number) for number in count(1))

    def programs(self, user_id: str) -> Iterator[Program]:
        return map(Conversation.program, self.conversations(user_id))

    def _conversation(self, user_id: str, number: int) -> Conversation:
        rng = self._rng("user", user_id)
        application = rng.randrange(self._config.applications)
        profile = _sentence(rng, self._config.profile_words)
        return Conversation(
            conversation_id=f"{user_id}/{number}",
            user_id=user_id,
            application=f"application-{application}",
            system_prompt=f"{self._prompts[application]}\n\nAbout {user_id}: {profile}",
            turns=self._turns(rng if number == 1 else self._rng("conversation", f"{user_id}/{number}")),
        )

    def _turns(self, rng: random.Random) -> tuple[Turn, ...]:
        """Draw a conversation's turns; a question with several turns is a conversation of its own."""
        asked = rng.choice(self._questions) if self._questions else ()
        if len(asked) > 1:
            return tuple(self._turn(rng, question) for question in asked)
        return tuple(self._turn(rng, self._question(rng)) for _ in range(self._config.turns.draw_int(rng)))

    def _question(self, rng: random.Random) -> str:
        if self._questions:
            return rng.choice(self._questions)[0]
        return _sentence(rng, self._config.question_words.draw_int(rng))

    def _turn(self, rng: random.Random, question: str) -> Turn:
        return Turn(
            question=question,
            output_tokens=self._config.output_tokens.draw_int(rng),
            think_s=self._config.think_s.draw(rng),
        )

    def _system_prompt(self, application: int) -> str:
        rng = self._rng("application", str(application))
        return f"You are application {application}. {_sentence(rng, self._config.system_prompt_words)}"

    def _rng(self, kind: str, name: str) -> random.Random:
        return _rng_of(self._seed, kind, name)


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """Shape of Tree of Thoughts (SkyWalker §5.1): with depth 4, two branches make 15 requests and four make 85."""

    branches: int = 2
    depth: int = 4
    instruction_words: int = 220
    """Words of the instruction shared by all trees: the task and its examples."""
    question_words: LengthSpread = LengthSpread(median=45, sigma=0.35, minimum=15, maximum=150)
    thought_words: int = 12
    """Words of the prompt with which a node asks for its next thought."""
    output_tokens: LengthSpread = LengthSpread(median=80, sigma=0.4, minimum=24, maximum=240)
    pause_s: LengthSpread = LengthSpread(median=0.2, sigma=0.3, minimum=0.05, maximum=1)
    """Pause between two trees of a user."""

    @property
    def requests(self) -> int:
        return sum(self.branches**level for level in range(self.depth))


class TreeOfThoughts:
    """Workload in which a tree of requests solves each question; a node starts when its parent has answered."""

    def __init__(self, config: TreeConfig, *, seed: int, questions: Questions = ()) -> None:
        self._config = config
        self._seed = seed
        self._questions = questions
        self._instruction = _sentence(_rng_of(seed, "instruction", "tree"), config.instruction_words)

    def programs(self, user_id: str) -> Iterator[Program]:
        rng = _rng_of(self._seed, "tree", user_id)
        number = 0
        while True:
            number += 1
            program_id = f"{user_id}/{number}"
            yield Program(program_id, user_id, program_id, self._instruction, tuple(self._steps(rng)))

    def _steps(self, rng: random.Random) -> Iterator[WorkloadStep]:
        config = self._config
        if self._questions:
            question = rng.choice(self._questions)[0]
        else:
            question = _sentence(rng, config.question_words.draw_int(rng))
        yield WorkloadStep(question, config.output_tokens.draw_int(rng), think_s=config.pause_s.draw(rng))
        for number in range(1, config.requests):
            text = f"Thought {number % config.branches}: {_sentence(rng, config.thought_words)}"
            yield WorkloadStep(text, config.output_tokens.draw_int(rng), after=(number - 1) // config.branches)


@dataclass(frozen=True, slots=True)
class BurstConfig:
    """Shape of bursts: a user sends many requests at once, and then pauses."""

    requests: int = 32
    document_words: int = 400
    """Words of the document that all requests of one burst share."""
    question_words: LengthSpread = LengthSpread(median=25, sigma=0.5, minimum=4, maximum=120)
    output_tokens: LengthSpread = LengthSpread(median=60, sigma=0.4, minimum=16, maximum=150)
    pause_s: LengthSpread = LengthSpread(median=15, sigma=0.3, minimum=5, maximum=60)


class Bursts:
    """Workload in which one user's requests all arrive at once, on one document, under one session key."""

    def __init__(self, config: BurstConfig, *, seed: int) -> None:
        self._config = config
        self._seed = seed

    def programs(self, user_id: str) -> Iterator[Program]:
        rng = _rng_of(self._seed, "bursts", user_id)
        number = 0
        while True:
            number += 1
            document = _sentence(rng, self._config.document_words)
            pause_s = self._config.pause_s.draw(rng)
            steps = tuple(self._step(rng, pause_s) for _ in range(self._config.requests))
            yield Program(f"{user_id}/{number}", user_id, user_id, document, steps)

    def _step(self, rng: random.Random, pause_s: float) -> WorkloadStep:
        question = _sentence(rng, self._config.question_words.draw_int(rng))
        return WorkloadStep(question, self._config.output_tokens.draw_int(rng), think_s=pause_s)


class MixedWorkload:
    """Workload that draws each of a user's programs from one of several workloads."""

    def __init__(self, parts: Sequence[tuple[float, Workload]], *, seed: int) -> None:
        assert parts, "a mixture has parts"
        self._weights = [weight for weight, _ in parts]
        self._parts = [workload for _, workload in parts]
        self._seed = seed

    def programs(self, user_id: str) -> Iterator[Program]:
        rng = _rng_of(self._seed, "mixture", user_id)
        running = [part.programs(f"{user_id}/{number}") for number, part in enumerate(self._parts)]
        while True:
            (chosen,) = rng.choices(running, self._weights)
            yield next(chosen)


class OneUser:
    """Workload whose requests all have one user's session key."""

    def __init__(self, workload: Workload, session_key: str) -> None:
        self._workload = workload
        self._session_key = session_key

    def programs(self, user_id: str) -> Iterator[Program]:
        return (replace(program, session_key=self._session_key) for program in self._workload.programs(user_id))


# Arrival times of users in open loop.


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Arrivals per second over time: linear between points, constant before the first and after the last."""

    points: tuple[tuple[float, float], ...]
    """(seconds, rate), in order of time."""

    def __post_init__(self) -> None:
        assert self.points, "a curve has at least one point"
        assert all(early < late for (early, _), (late, _) in pairwise(self.points)), "points are in order of time"
        assert all(rate >= 0 for _, rate in self.points), "no rate is negative"

    def rate_at(self, at_s: float) -> float:
        before = [point for point in self.points if point[0] <= at_s]
        after = [point for point in self.points if point[0] > at_s]
        if not before or not after:
            return (before or after)[-1 if before else 0][1]
        (from_s, from_rate), (to_s, to_rate) = before[-1], after[0]
        return from_rate + (to_rate - from_rate) * (at_s - from_s) / (to_s - from_s)

    def scaled(self, factor: float) -> RateCurve:
        return RateCurve(tuple((at_s, rate * factor) for at_s, rate in self.points))


def steady(rate: float) -> RateCurve:
    return RateCurve(((0.0, rate),))


def diurnal(*, peak: float, trough: float, day_s: float, shift_hours: float, days: int = 1) -> RateCurve:
    """One day of 24 hours squeezed into `day_s`: lowest at 4 o'clock and highest at 16 o'clock of local time, which is
    `shift_hours` ahead of the run's."""
    middle, swing = (peak + trough) / 2, (peak - trough) / 2
    return RateCurve(
        tuple(
            (hour / 24 * day_s, middle - swing * math.cos((hour + shift_hours - 4) / 24 * math.tau))
            for hour in range(24 * days + 1)
        )
    )


def arrivals(curve: RateCurve, rng: random.Random, *, until_s: float, variation: float = 1.0) -> Iterator[float]:
    """Arrival times. Gaps are Gamma-distributed with this coefficient of variation before the curve stretches them: 1
    is a Poisson process, more is burstier, 0 is a metronome."""
    work, at_s = 0.0, 0.0
    for start_s, end_s, start_rate, end_rate in _pieces(curve, until_s):
        slope = (end_rate - start_rate) / (end_s - start_s)
        at_s, left = start_s, (start_rate + end_rate) / 2 * (end_s - start_s)
        rate = start_rate
        while True:
            if work <= 0:
                work = _unit_gap(rng, variation)
            if work > left:
                work -= left
                break
            step_s = _time_for(work, rate, slope)
            left -= work
            work = 0.0
            at_s += step_s
            rate += slope * step_s
            yield min(at_s, end_s)


def _pieces(curve: RateCurve, until_s: float) -> Iterator[tuple[float, float, float, float]]:
    """Straight pieces of the curve from 0 to the end: from, to, and the rate at each."""
    corners = [0.0, *(at_s for at_s, _ in curve.points if 0 < at_s < until_s), until_s]
    for start_s, end_s in pairwise(corners):
        yield start_s, end_s, curve.rate_at(start_s), curve.rate_at(end_s)


def _unit_gap(rng: random.Random, variation: float) -> float:
    """Gap between arrivals with mean 1."""
    if variation == 0:
        return 1.0
    shape = 1 / variation**2
    return rng.gammavariate(shape, 1 / shape)


def _time_for(work: float, rate: float, slope: float) -> float:
    """Time until a rate that changes by `slope` adds up to `work`."""
    if abs(slope) < 1e-12:
        return work / rate
    root = math.sqrt(max(0.0, rate * rate + 2 * slope * work))
    return 2 * work / (rate + root)


def _rng_of(seed: int, kind: str, name: str) -> random.Random:
    return random.Random(f"{seed}/{kind}/{name}")


def _sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words)).capitalize() + "."
