"""Counts of an input file's lines and tokens, as the gateway would count its requests. It does no I/O and keeps no
text."""

from __future__ import annotations

from msgspec import Struct

from gateway.core.vocabulary import GatewayId, Jurisdiction, Place, RegionName, RequestId, TenantName
from gateway.door.errors import BODY_TOO_LARGE, ClientFault
from gateway.door.parse import Caller, read_request
from gateway.door.settings import HttpSettings
from gateway.features.batches.outlook import BatchOutlook
from gateway.request.engine_api import EMBEDDINGS_PATH
from gateway.request.usage import prompt_guess

_REFUSED_MAX = 100
"""Lines that the gateway would refuse when they run, which are told."""


class FileCounts(Struct):
    """Sums over the lines of a file that have no fault and would not be refused."""

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
    """Counts the lines of one file by reading each as the gateway would read its request."""

    def __init__(self, endpoint: str, model: str, outlook: BatchOutlook) -> None:
        self.counts = FileCounts(endpoint, model)
        self.refused: list[RefusedLine] = []
        """First lines that would be refused."""
        self.refusals = 0
        self._outlook = outlook
        here = Place(RegionName(outlook.region), Jurisdiction(""))
        self._settings = HttpSettings(GatewayId(""), here, pass_priority=outlook.pass_priority, prefix_blocks_max=0)
        self._caller = Caller(RequestId(""), TenantName(""), ("", ""))

    def take(self, number: int, raw: bytes) -> None:
        """Count the request of a line."""
        try:
            if len(raw) > self._outlook.body_bytes_max:
                raise ClientFault(BODY_TOO_LARGE)
            profile = read_request(self.counts.endpoint, raw, self._caller, self._settings).profile
        except ClientFault as fault:
            self.refusals += 1
            if len(self.refused) < _REFUSED_MAX:
                self.refused.append(RefusedLine(number, fault.detail or fault.kind.message))
            return
        counts = self.counts
        counts.lines += 1
        counts.prompt_bytes += profile.prompt_bytes
        counts.prompt_tokens += prompt_guess(profile)
        if counts.endpoint == EMBEDDINGS_PATH:
            return
        stated, mean = profile.output_tokens_max, self._outlook.output_tokens
        most = self._outlook.output_tokens_reserved if stated is None else stated
        counts.unstated += stated is None
        counts.output_tokens_max += most
        counts.output_tokens += most if mean is None else min(mean, most)
