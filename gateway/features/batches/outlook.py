"""Outlook for a further batch, as a gateway tells it to the client that plans one. Values only."""

from __future__ import annotations

from msgspec import Struct

from gateway.features.batches.state import LineFault

OUTLOOK_PATH = "/v1/batches/outlook"


class PlaceShare(Struct, frozen=True):
    """Shares that a further batch would have from a time on; both are 0 while it waits for its turn."""

    from_s: float
    """Seconds from now."""
    places: float
    """Share of all places of lines."""
    room: float
    """Share of the room for lines of its model."""


class RegionOutlook(Struct, frozen=True):
    """Region that lines of the model may run in."""

    region: str
    lines: int
    """Lines of all batches of the model that could run at once there, those that run already with them."""
    prompt_ns: float | None = None
    """Nanoseconds that a request takes for each token of its prompt, as of late; None: not known."""
    output_ns: float | None = None
    """Nanoseconds for each token of its answer; None: not known."""


class BatchOutlook(Struct, frozen=True, kw_only=True):
    """Limits, room and pace for a batch that would be handed in now."""

    region: str
    """Region of the gateway."""
    faults: list[LineFault] = []
    """Faults of any file: no further batch is taken from the client, or it may not use the model."""
    file_bytes_max: int
    lines_max: int
    line_bytes_max: int
    body_bytes_max: int
    """Bytes of the request of a line at most."""
    pass_priority: bool
    """True if requests may have a field `priority`."""
    output_tokens_reserved: int
    """Tokens of an answer that count for a line which states no maximum."""
    lines_at_once: int
    """Lines of all batches that may run at once."""
    shares: list[PlaceShare]
    """Shares by the batches before it, in order of time; the last one stays."""
    waits_for_unknown: bool
    """True if the pace of a batch before it is not known: it is taken to last until its window ends."""
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

    def __post_init__(self) -> None:
        if not any(each.places > 0 for each in self.shares):
            raise ValueError("a batch would never have a place")
