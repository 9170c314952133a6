"""Interface of a placement policy: it picks one target among those that a request may go to at this moment.

A policy never judges which targets may be asked, does no I/O, reads no clock, and draws chance only from the fleet's
source. docs/concepts/placement.md has the rules for writing a policy, an example, and the test that checks them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from mypy_extensions import mypyc_attr

from gateway.core.kernel.config import PlacementConfig
from gateway.core.kernel.requests import Hold
from gateway.core.placement.fleet import Fleet
from gateway.core.vocabulary import Costs, PlacementReason, RequestProfile, Target


class Offer:
    """Targets that a request may go to, as masks of slots."""

    __slots__ = ("arrived_ns", "awaited", "free", "held", "ready", "remotes", "replicas", "siblings")

    def __init__(self, replicas: int, *, siblings: int = 0, remotes: int = 0) -> None:
        self.replicas = self.ready = self.free = replicas
        """Own replicas that answer and take requests, whatever their load. Of those, `ready` may be sent a request at
        this moment, and `free` are not full."""
        self.siblings = siblings
        self.remotes = remotes
        self.held: Hold | None = None
        """Hold of a request that already waits for a replica; it is the first of its class there."""
        self.arrived_ns = 0
        self.awaited = (0, 0)
        """Replicas and peers that the request may go to sooner or later, for a patient one; else empty."""

    def count(self) -> int:
        """Number of targets of all kinds."""
        return (self.replicas.bit_count() + self.siblings.bit_count()) + self.remotes.bit_count()


class Weighed:
    """Target that a policy compared, with the figures it compared; the placement record shows the same figures."""

    __slots__ = ("blocks", "crowding_ns", "distance_ns", "reading_ns", "slot", "total_ns", "waiting_ns")

    def __init__(
        self,
        slot: int,
        blocks: int,
        *,
        reading_ns: float,
        crowding_ns: float,
        waiting_ns: float,
        distance_ns: float = 0.0,
    ) -> None:
        self.slot = slot
        self.blocks = blocks
        """Number of the prompt's first blocks that the target knows already."""
        self.reading_ns = reading_ns
        self.crowding_ns = crowding_ns
        self.waiting_ns = waiting_ns
        self.distance_ns = distance_ns
        self.total_ns = reading_ns + crowding_ns + waiting_ns + distance_ns

    def costs(self) -> Costs:
        """Return the same figures for the placement record."""
        return Costs(self.reading_ns, self.crowding_ns, self.waiting_ns, self.distance_ns)


class Choice:
    """Slot picked from the offer, with the figures for the placement record."""

    __slots__ = (
        "candidates",
        "hold",
        "is_peer",
        "matched_blocks",
        "peers",
        "reason",
        "replicas",
        "slot",
        "uncached_bytes",
    )

    def __init__(self, slot: int, matched_blocks: int = 0, reason: PlacementReason | None = None) -> None:
        self.slot = slot
        self.is_peer = False
        """True if the slot is a peer's."""
        self.hold: Hold | None = None
        """Set if the request waits for the replica in that slot."""
        self.uncached_bytes = -1
        """Bytes of the prompt that the target has to prefill, where the policy knows better than by matched blocks;
        else −1."""
        self.matched_blocks = matched_blocks
        """Number of the prompt's first blocks that the target has already."""
        self.reason = reason
        """Reason for the placement record. None: the policy chose."""
        self.candidates = -1
        """Number of targets that were considered; −1: all of the offer."""
        self.replicas: list[Weighed] = []
        """Replicas that were compared; for the others the record calls `costs_at_replica`."""
        self.peers: list[Weighed] = []
        """Peers that were compared; for the others the record calls `costs_at_peer`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy(ABC):
    """Placement policy of one gateway, kept as long as the config names it. It receives the events of targets in order,
    and is asked for choices between them."""

    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        self.fleet = fleet
        self.config = config

    @staticmethod
    def check_options(options: Mapping[str, object]) -> None:
        """Raise ValueError, with a readable message, for invalid `policy_options`. Called before they enter a
        config."""
        if options:
            raise ValueError(f"{', '.join(options)}: this policy has no options")

    # Questions

    @abstractmethod
    def weigh(self, profile: RequestProfile, offer: Offer, now_ns: int, /) -> Choice | None:
        """Return one target of the offer, to be used at once or, with a hold, when it is done with the work before this
        request. None: the request waits, since no target will do at this moment.

        In shadow mode the policy is first asked with other regions in the offer, then without them, and the first
        choice is not followed: state is updated by `sent` and `held` only.
        """

    def takes_full_replicas(self) -> bool:
        """Return true if a choice may be a full replica or a hold for one: then offers contain full replicas, which
        compete with waiting. Otherwise the policy chooses among `Offer.free`."""
        return False

    def hold_pinned(self, profile: RequestProfile, offer: Offer, slot: int, /) -> Hold | None:  # noqa: ARG002
        """Return a hold if a request that follows a stored response has to wait its turn at the only replica that has
        it. None: the request goes there as soon as the replica may be sent something."""
        return None

    def reading_again_ns(self, uncached_bytes: int) -> float:  # noqa: ARG002
        """Nanoseconds, as far as known, in which an own replica prefills again what this much of a prompt evicts from
        its cache; 0: no request waits to avoid that."""
        return 0.0

    def byte_ns(self) -> float:
        """Nanoseconds in which an own replica reads a byte of a prompt, as far as known; 0: not at all."""
        return 0.0

    def costs_at_replica(
        self,
        profile: RequestProfile,  # noqa: ARG002
        slot: int,  # noqa: ARG002
        held: Hold | None,  # noqa: ARG002
        matched_blocks: int = -1,  # noqa: ARG002
    ) -> Costs | None:
        """Return the estimated costs at a replica, for the placement record. `matched_blocks` is −1 where the match is
        not known yet."""
        return None

    def costs_at_peer(self, profile: RequestProfile, slot: int, matched_blocks: int = -1) -> Costs | None:  # noqa: ARG002
        return None

    def wants_prefixes(self) -> bool:
        """Return true if `match_replicas` and `match_peers` need a prefix index; it costs time and memory."""
        return False

    # Events

    def configure(self, config: PlacementConfig) -> None:
        """Take new settings of the same policy."""
        self.config = config

    def joined(self, target: Target, slot: int) -> None:  # noqa: B027 - a policy keeps the books that it needs
        """Note a target that has taken the slot."""

    def left(self, target: Target, slot: int) -> None:  # noqa: B027
        """Forget a target that has left: the next one to join may get its slot."""

    def follows(self, arrived_ns: int, now_ns: int) -> None:  # noqa: B027
        """Note that the next request sent follows a stored response, which the policy is not asked about: its arrival
        and the time."""

    def sent(self, profile: RequestProfile, target: Target, slot: int, matched_blocks: int) -> None:  # noqa: B027
        """Note a request that was sent: the choice was followed, or the request follows a stored response and went to
        its only possible target without a choice."""

    def refused(self, profile: RequestProfile, target: Target, slot: int) -> None:  # noqa: B027
        """Note a forward that a peer refused."""

    def unread(self, profile: RequestProfile, target: Target, slot: int, matched_blocks: int) -> None:  # noqa: B027
        """Note a request that an engine refused (4xx) and whose prompt it therefore did not prefill."""

    def shortened(self, chain: bytes, slot: int, blocks: int) -> None:  # noqa: B027
        """Note that an own replica's engine holds only the first blocks of a prompt from now on."""

    def holds(self, chain: bytes, slot: int, now_ns: int) -> None:  # noqa: B027
        """Note that an own replica's engine says it holds this beginning of a prompt."""

    def emptied(self, slot: int) -> None:  # noqa: B027
        """Note that an own replica's engine has cleared its cache."""

    def first_token(self, profile: RequestProfile, matched_blocks: int, took_ns: int) -> None:  # noqa: B027
        """Note the time to first token of an own replica that had this many blocks of the prompt."""

    def expire(self, now_ns: int) -> None:  # noqa: B027
        """Forget what was not refreshed within its time to live."""

    def prefilled(self, slot: int, uncached_bytes: int, started_ns: int, now_ns: int) -> None:  # noqa: B027
        """Note a first token of the own replica in that slot, which got the request at `started_ns` and had this many
        bytes of the prompt to prefill."""

    def ended(self, slot: int, now_ns: int) -> None:  # noqa: B027
        """Note the end of a leg at the replica in that slot."""

    def answered(self, profile: RequestProfile, prompt_tokens: int, output_tokens: int) -> None:  # noqa: B027
        """Note the token counts that an own replica reported."""

    def written(self, took_ns: int) -> None:  # noqa: B027
        """Note an answer that an own replica streamed to its end: nanoseconds from the first token to the last."""

    def held(self, hold: Hold) -> None:  # noqa: B027
        """Note that a request waits for a replica, as the policy chose."""

    def unheld(self, hold: Hold) -> None:  # noqa: B027
        """Note the end of a hold."""


PolicyFactory = Callable[[Fleet, PlacementConfig], Policy]
PlugIns = Callable[[str], PolicyFactory]
"""Factory of a policy that is not built in, by name. The config loader has checked that the name exists."""


def no_plug_ins(name: str) -> PolicyFactory:
    raise AssertionError(f"there is no placement policy {name}, and none was handed in")


def share_of(profile: RequestProfile, blocks: int) -> float:
    """Share of the prompt's bytes in that many blocks."""
    return profile.cached_bytes(blocks) / max(1, profile.prompt_bytes)


def is_worth_following(profile: RequestProfile, matched_blocks: int, share_min: float) -> bool:
    if not matched_blocks:
        return False
    return profile.cached_bytes(matched_blocks) >= share_min * profile.prompt_bytes
