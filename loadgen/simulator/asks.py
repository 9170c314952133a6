"""What travels through a simulated mesh: one client's request, and who hears how it goes on. No decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from gateway.core.vocabulary import (
    GatewayId,
    Outcome,
    RefusalReason,
    RegionName,
    ReplicaId,
    RequestId,
    RequestProfile,
    Resumes,
)
from loadgen.engine.tokens import TOKEN_BYTES
from loadgen.simulator.answers import Told
from loadgen.simulator.prompts import Prompt

TRY_MARK = "~"
"""Between a request's id and the number of a further try, which gateways know as a request of its own."""


@dataclass(frozen=True, slots=True)
class RanAt:
    """Where an engine answers, and what of the prompt it had in its cache."""

    region: RegionName
    replica_id: ReplicaId
    cached_tokens: int


class Upstream(Protocol):
    """Whoever waits for an answer at the near end of a line: a client, or the gateway that forwarded."""

    def forward_accepted(self) -> None: ...

    def forward_refused(self, reason: RefusalReason, detail: str) -> None: ...

    def first_token(self, ran_at: RanAt) -> None: ...

    def ended(self, outcome: Outcome, detail: str, resumes_used: Resumes) -> None: ...


@dataclass(slots=True, eq=False)
class Ask:
    """One request as its client knows it. Times are the client's."""

    profile: RequestProfile
    prompt_tokens: int
    whole: Prompt
    """The prompt with its answer."""
    output_tokens: int
    region: RegionName
    gateway_id: GatewayId | None
    """Where it entered the mesh; None when no gateway was up."""
    sent_ns: int
    group: int
    is_stored: bool = False
    """Whoever answers it keeps the answer, under the request's id."""
    is_last_check: bool = False
    """Asked after everything has healed: it has to be answered."""
    first_token_ns: int | None = None
    ran_at: RanAt | None = None
    ended_ns: int | None = None
    outcome: Outcome | None = None
    """None while it runs, and where the connection broke."""
    detail: str = ""
    tries: int = 1
    """How often its client sent it."""
    failed_by: str = ""
    """Of a failure: whose it is, where clients find gateways by name."""
    told: Told = field(default_factory=Told)
    """Of its answer, where answers that break go on."""

    @property
    def request_id(self) -> RequestId:
        return self.profile.request_id

    def rest(self, said: int) -> RequestProfile:
        """What is left to do when so many tokens of the answer are there."""
        profile, whole = self.profile, self.whole
        prompt_bytes = profile.prompt_bytes + said * TOKEN_BYTES
        blocks = prompt_bytes // profile.prefix_block_bytes
        prefix = whole.chain(profile.prefix_block_bytes // whole.block_bytes, max(blocks, profile.prefix_blocks))
        return replace(profile, prompt_bytes=prompt_bytes, prefix=prefix, goes_on=True)

    @property
    def response_id(self) -> RequestId:
        """Of the answer, if that is stored: the same whichever try gets it."""
        return RequestId(self.request_id.partition(TRY_MARK)[0])
