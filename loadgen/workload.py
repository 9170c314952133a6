"""What users ask: multi-turn conversations with shared system prompts and growing histories, drawn from a seed.

It says what is sent and how long people think, never when: it must know no clock, no socket and no event loop.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

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


class Message(TypedDict):
    """One entry of a chat request's `messages`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Spread:
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
    """The shape of the conversations (SkyWalker §5.1, multi-turn); a word is about one and a half tokens."""

    applications: int = 4
    """Each has a system prompt that all its users share."""
    system_prompt_words: int = 300
    profile_words: int = 60
    """What an application remembers of a user: the same in all of the user's conversations."""
    turns: Spread = Spread(median=4, sigma=0.5, minimum=1, maximum=10)
    question_words: Spread = Spread(median=40, sigma=0.7, minimum=4, maximum=300)
    output_tokens: Spread = Spread(median=60, sigma=0.4, minimum=16, maximum=150)
    think_s: Spread = Spread(median=1.5, sigma=0.6, minimum=0.2, maximum=8)


@dataclass(frozen=True, slots=True)
class Turn:
    """One question, and what to expect of its answer."""

    question: str
    output_tokens: int
    think_s: float
    """How long the user thinks before asking."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A user's questions to one application; each goes out with everything said before it."""

    conversation_id: str
    user_id: str
    application: str
    system_prompt: str
    turns: tuple[Turn, ...]

    def messages(self, replies: Sequence[str]) -> list[Message]:
        """What is sent for the next turn, after these replies to the turns before it."""
        assert len(replies) < len(self.turns), "every turn has been answered"
        said = [Message(role="system", content=self.system_prompt)]
        for turn, reply in zip(self.turns, replies, strict=False):
            said.append(Message(role="user", content=turn.question))
            said.append(Message(role="assistant", content=reply))
        said.append(Message(role="user", content=self.turns[len(replies)].question))
        return said


class MultiTurnWorkload:
    """Users and their conversations: for one seed a user says the same things, however fast the answers come."""

    def __init__(self, config: WorkloadConfig, *, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._prompts = [self._system_prompt(application) for application in range(config.applications)]

    def conversations(self, user_id: str) -> Iterator[Conversation]:
        """One user's conversations, without end."""
        rng = self._rng("user", user_id)
        application = rng.randrange(self._config.applications)
        profile = _sentence(rng, self._config.profile_words)
        number = 0
        while True:
            number += 1
            yield Conversation(
                conversation_id=f"{user_id}/{number}",
                user_id=user_id,
                application=f"application-{application}",
                system_prompt=f"{self._prompts[application]}\n\nAbout {user_id}: {profile}",
                turns=self._turns(rng),
            )

    def _turns(self, rng: random.Random) -> tuple[Turn, ...]:
        return tuple(self._turn(rng) for _ in range(self._config.turns.draw_int(rng)))

    def _turn(self, rng: random.Random) -> Turn:
        return Turn(
            question=_sentence(rng, self._config.question_words.draw_int(rng)),
            output_tokens=self._config.output_tokens.draw_int(rng),
            think_s=self._config.think_s.draw(rng),
        )

    def _system_prompt(self, application: int) -> str:
        rng = self._rng("application", str(application))
        return f"You are application {application}. {_sentence(rng, self._config.system_prompt_words)}"

    def _rng(self, kind: str, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{kind}/{name}")


def _sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=words)).capitalize() + "."
