"""Request of a simulated client, and the interface by which progress is reported to it or to a forwarding gateway. No
decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from gateway.core.block_sizes import blocks_in
from gateway.core.vocabulary import (
    GatewayId,
    Notes,
    Outcome,
    RefusalReason,
    RegionName,
    ReplicaId,
    RequestId,
    RequestProfile,
)
from loadgen.engine.tokens import TOKEN_BYTES
from loadgen.simulator.answers import Told
from loadgen.simulator.prompts import Prompt

TRY_MARK = "~"
"""Separator between a request's id and the number of a retry, which gateways treat as a request of its own."""


@dataclass(frozen=True, slots=True)
class SimRanAt:
    """Engine that answers, and the prompt tokens that it had in its cache."""

    region: RegionName
    replica_id: ReplicaId
    cached_tokens: int
    identity: str = ""
    """Identity of the engine's model; empty: not known."""


class Upstream(Protocol):
    """Receiver of an answer at the near end of a line: a client, or the gateway that forwarded."""

    def forward_accepted(self) -> None: ...

    def forward_refused(self, reason: RefusalReason, detail: str) -> None: ...

    def first_token(self, ran_at: SimRanAt) -> None: ...

    def ended(self, outcome: Outcome, detail: str, notes: Notes) -> None: ...


@dataclass(slots=True, eq=False)
class ClientRequest:
    """One request as its client knows it. Times are the client's."""

    profile: RequestProfile
    prompt_tokens: int
    whole: Prompt
    """Prompt followed by its answer."""
    output_tokens: int
    region: RegionName
    gateway_id: GatewayId | None
    """Gateway at which it entered the mesh; None when no gateway was up."""
    sent_ns: int
    group: int
    is_stored: bool = False
    """True if the engine that answers stores the answer, under the request's id."""
    is_last_check: bool = False
    """True for a request sent after everything has healed, which must be answered."""
    first_token_ns: int | None = None
    ran_at: SimRanAt | None = None
    ended_ns: int | None = None
    outcome: Outcome | None = None
    """Outcome; None while the request runs, and if the connection broke."""
    detail: str = ""
    tries: int = 1
    """Number of times that its client sent it."""
    failed_by: str = ""
    """Cause of a failure (`FailedBy`), where clients find gateways by name."""
    told: Told = field(default_factory=Told)
    """Progress of its answer, where broken answers are continued."""

    @property
    def request_id(self) -> RequestId:
        return self.profile.request_id

    def rest(self, said: int) -> RequestProfile:
        """Profile of what is left to do when `said` tokens of the answer exist."""
        profile, whole = self.profile, self.whole
        prompt_bytes = profile.prompt_bytes + said * TOKEN_BYTES
        blocks = blocks_in(prompt_bytes, profile.prefix_block_bytes)
        prefix = whole.chain(profile.prefix_block_bytes // whole.block_bytes, max(blocks, profile.prefix_blocks))
        return replace(profile, prompt_bytes=prompt_bytes, prefix=prefix, appends=True)

    @property
    def response_id(self) -> RequestId:
        """Id of the stored answer: the same for every retry."""
        return RequestId(self.request_id.partition(TRY_MARK)[0])
