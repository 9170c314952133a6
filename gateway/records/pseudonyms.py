"""Pseudonyms for values in a journal that could confirm a guess at a prompt, such as block hashes. They depend on a key
that is drawn for the journal and never leaves the process.

Equal values get equal pseudonyms and different values different ones, so a run replays the same under them. They cannot
be reversed, and without the key a prompt cannot be matched to its pseudonym, not even by a reader who has the prompt.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from msgspec.structs import replace

from gateway.core.kernel.effects import Effect, EndRequest, RefuseForward
from gateway.core.kernel.events import ForwardArrived, LegEnded, RequestArrived
from gateway.core.vocabulary import PREFIX_HASH_BYTES, ModelName, Outcome, RefusalReason, RequestProfile
from gateway.request.driver import GatewayStep
from mesh.steps import Step

KEY_BYTES = 16
_ROUNDS = 10
"""Rounds of NIST's FF1 (SP 800-38G), which permutes domains as small as these."""
_AES_WORDS = 4
_NAME_BYTES = 8
_MODEL_IS_CLIENT_TEXT = frozenset(
    {Outcome.REJECTED_UNKNOWN_MODEL, Outcome.REJECTED_DRAINING, RefusalReason.UNKNOWN_MODEL, RefusalReason.DRAINING}
)
"""Refusals for which the model may be known to no gateway, and which turn out the same for any model that is not
served."""


class Pseudonyms:
    """Pseudonyms of one journal."""

    def __init__(self, key: bytes | None = None) -> None:
        """Draw a key; only tests pass one."""
        self._key = secrets.token_bytes(KEY_BYTES) if key is None else key
        self._aes = Cipher(AES(self._key), ECB()).encryptor()  # noqa: S305 - each block is the input of a round function

    def step(self, step: GatewayStep, *, keeps_session: bool) -> GatewayStep:
        """Step with pseudonyms. `keeps_session`: the placement policy depends on session keys, so a replay needs them.

        The prefix of a refused request is left out, since no index keeps it. The prompt key for predictors' histories
        stays: it was made with a secret, and has to match histories of an older process.
        """
        event = step.event
        if isinstance(event, LegEnded) and event.remainder is not None:
            remainder = self._named(event.remainder, keeps_session=keeps_session)
            return Step(step.now_ns, replace(event, remainder=remainder), step.effects)
        if not isinstance(event, RequestArrived | ForwardArrived):
            return step
        profile, effects = event.profile, step.effects
        refused = None if effects is None else _refusal_of(profile, effects)
        asked = profile if refused is None else replace(profile, prefix=b"", prompt_key=b"")
        told = self._named(asked, keeps_session=keeps_session)
        if refused is not None and _word_of(refused) in _MODEL_IS_CLIENT_TEXT:
            told = replace(told, model=ModelName(f"unserved-{self.name(profile.model)}"))
            effects = [_about(each, profile.model, told.model) if each is refused else each for each in effects or ()]
        return Step(step.now_ns, replace(event, profile=told), effects)

    def _named(self, profile: RequestProfile, *, keeps_session: bool) -> RequestProfile:
        session = profile.session_key if keeps_session else self.name(profile.session_key)
        return replace(profile, prefix=self.chain(profile.prefix), session_key=session)

    def chain(self, prefix: bytes) -> bytes:
        """Permute each hash of a packed chain by itself: a Feistel network with AES as its round function.

        All hashes go through each round together, since one at a time would take milliseconds.
        """
        assert len(prefix) % PREFIX_HASH_BYTES == 0, "a chain is whole hashes"
        halves = np.frombuffer(prefix, np.uint32).reshape(-1, 2)
        left, right = halves[:, 0], halves[:, 1]
        for number in range(_ROUNDS):
            left, right = right, left ^ self._round(number, right)
        return np.column_stack((left, right)).tobytes()

    def name(self, text: str) -> str:
        raw = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(raw, digest_size=_NAME_BYTES, key=self._key, person=b"nightside-name").hexdigest()

    def _round(self, number: int, halves: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        blocks = np.zeros((len(halves), _AES_WORDS), np.uint32)
        blocks[:, 0] = halves
        blocks[:, 1] = number
        mixed = np.frombuffer(self._aes.update(blocks.tobytes()), np.uint32)
        return mixed.reshape(-1, _AES_WORDS)[:, 0]


def _refusal_of(profile: RequestProfile, effects: Iterable[Effect]) -> EndRequest | RefuseForward | None:
    """Refusal of a request in the step of its arrival; None if it was not refused."""
    ends = (each for each in effects if isinstance(each, EndRequest | RefuseForward))
    return next((each for each in ends if each.request_id == profile.request_id), None)


def _word_of(refused: EndRequest | RefuseForward) -> Outcome | RefusalReason:
    return refused.outcome if isinstance(refused, EndRequest) else refused.reason


def _about(refused: EndRequest | RefuseForward, model: ModelName, named: ModelName) -> EndRequest | RefuseForward:
    return replace(refused, detail=refused.detail.replace(f"`{model}`", f"`{named}`"))
