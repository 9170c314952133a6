"""Counts of an input file by API and model: lines, and tokens as the gateway reserves them. It does no I/O and keeps no
text."""

from __future__ import annotations

from msgspec import Struct

from gateway.config.content import ContentConfig
from gateway.core.vocabulary import ModelName
from gateway.request.bodies import Body, BodyFault, read_body
from gateway.request.engine_api import EMBEDDINGS_PATH
from gateway.request.media import MediaTokens, media_in
from gateway.request.usage import tokens_in

_REFUSED_MAX = 100
"""Lines that the gateway would refuse when they run, which are told."""
_COUNTS_MAX = 100
"""Pairs of API and model that are told apart; a file with several is no batch."""


class FileCounts(Struct):
    """Sums over the lines of one API and model."""

    endpoint: str
    model: str
    lines: int = 0
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    output_tokens_max: int = 0
    """Tokens of all answers at most: the stated maximum of each line, or what the gateway reserves for it."""
    output_tokens: float = 0.0
    """Tokens of all answers as expected: the mean length of late, and at most each line's maximum."""
    unstated: int = 0
    """Lines that state no maximum, whose answers may be longer."""


class RefusedLine(Struct, frozen=True):
    """Line of a valid file that the gateway would refuse when it runs."""

    line: int
    message: str


class FileCounter:
    """Counts the lines of one file."""

    def __init__(self, output_tokens_reserved: int, output_tokens: float | None) -> None:
        """`output_tokens`: mean length of the model's answers; None: not known, and the maximum is expected."""
        self.refused: list[RefusedLine] = []
        """First lines that would be refused."""
        self.refusals = 0
        self._reserved = output_tokens_reserved
        self._mean = output_tokens
        self._counts: dict[tuple[str, str], FileCounts] = {}
        self._media_tokens = MediaTokens(ContentConfig)

    @property
    def counts(self) -> list[FileCounts]:
        """Counts, the most lines first."""
        return sorted(self._counts.values(), key=lambda each: -each.lines)

    def take(self, number: int, endpoint: str, raw: bytes) -> None:
        """Count the request of a line. One that cannot be read counts as a refused one."""
        try:
            body = read_body(endpoint, raw, passes_priority=True)
        except (BodyFault, KeyError) as fault:
            self.refusals += 1
            if len(self.refused) < _REFUSED_MAX:
                told = fault.detail if isinstance(fault, BodyFault) else "the gateway does not know this API"
                self.refused.append(RefusedLine(number, told))
            return
        key = (endpoint, body.model)
        if key not in self._counts and len(self._counts) >= _COUNTS_MAX:
            return
        counts = self._counts.setdefault(key, FileCounts(endpoint, body.model))
        counts.lines += 1
        prompt_bytes = self._prompt_bytes(body, raw)
        counts.prompt_bytes += prompt_bytes
        counts.prompt_tokens += tokens_in(prompt_bytes)
        if endpoint == EMBEDDINGS_PATH:
            return
        stated = body.output_tokens_max()
        most = self._reserved if stated is None else max(stated, 0)
        counts.unstated += stated is None
        counts.output_tokens_max += most
        counts.output_tokens += most if self._mean is None else min(self._mean, most)

    def _prompt_bytes(self, body: Body, raw: bytes) -> int:
        media = media_in(body, raw, ModelName(body.model), self._media_tokens)
        return sum(map(len, body.prompt_parts())) if media is None else media.prompt_bytes
