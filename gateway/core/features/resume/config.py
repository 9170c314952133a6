"""Settings of the resumption of broken answers."""

from __future__ import annotations

from msgspec import Struct

_SECOND_NS = 1_000_000_000


class ResumeConfig(Struct, frozen=True):
    """Handling of an answer that breaks after its first token."""

    enabled: bool = True
    """Resume broken answers on another replica. False: the client's stream ends with an error."""
    resumes_max: int = 3
    """Most resumptions of one request."""
    wait_max_ns: int = 30 * _SECOND_NS
    """Longest wait of a broken answer for a target that resumes it."""
    token_ids: bool = False
    """True: engines are asked for the ids of generated tokens, which are removed from the client's answer. The rest of
    a broken answer is then exact."""
