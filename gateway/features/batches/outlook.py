"""Outlook for a further batch, as a gateway tells it to the client that plans one. Values only."""

from __future__ import annotations

from msgspec import Struct

OUTLOOK_PATH = "/v1/batches/outlook"


class PlaceShare(Struct, frozen=True):
    """Share of all places of lines that a further batch would have from a time on."""

    from_s: float
    """Seconds from now."""
    share: float
    """0 while the batch waits for its turn."""


class RegionOutlook(Struct, frozen=True):
    """Region that lines of the model may run in."""

    region: str
    lines: int
    """Lines that could run at once beside what runs there now. Room that requests of class `batch` have counts, too:
    a further batch has its share of it."""
    prompt_ns: float | None = None
    """Nanoseconds that a request takes for each token of its prompt, as of late; None: not known."""
    output_ns: float | None = None
    """Nanoseconds for each token of its answer; None: not known."""


class BatchOutlook(Struct, frozen=True):
    """Limits, room and pace for a batch that would be handed in now."""

    region: str
    """Region of the gateway."""
    file_bytes_max: int
    lines_max: int
    line_bytes_max: int
    output_tokens_reserved: int
    """Tokens of an answer that count for a line which states no maximum."""
    lines_at_once: int
    """Lines of all batches that may run at once."""
    shares: list[PlaceShare]
    """Shares of the places by the batches before it, in order of time; the last one stays."""
    unknown_ahead: int
    """Batches before it whose pace is not known: they are taken to last until their window ends."""
    knows_model: bool
    """True if the client may use the model that it asked for."""
    output_tokens: float | None = None
    """Mean tokens of the model's answers of late; None: not known."""
    regions: list[RegionOutlook] = []
    """Regions within the policy that serve the model, this gateway's first."""
    own_requests_max: int | None = None
    """Limit on the client's requests at once; None: none."""
    requests_per_minute: int | None = None
    """Limit of the client; None: none."""
    tokens_per_minute: int | None = None
    """Limit of the client; None: none."""
