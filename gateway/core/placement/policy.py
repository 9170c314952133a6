"""What a placement policy is: it picks one target among those that a request may go to at this moment.

It never judges who may be asked, does no I/O, reads no clock, and draws no chance but the fleet's. Whoever writes one
finds the rules, an example and the test that holds it to them in docs/placement.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from mypy_extensions import mypyc_attr

from gateway.core.config import PlacementConfig
from gateway.core.placement.fleet import Fleet
from gateway.core.requests import Hold
from gateway.core.vocabulary import Costs, PlacementReason, RequestProfile, Target


class Offer:
    """Targets that a request may go to, as masks."""

    __slots__ = ("arrived_ns", "free", "held", "ready", "remotes", "replicas", "siblings")

    def __init__(self, replicas: int, *, siblings: int = 0, remotes: int = 0) -> None:
        self.replicas = self.ready = self.free = replicas
        """Replicas of ours that answer and take requests, however much they have to do. Of those, `ready` may be sent
        a request at this moment, and `free` are not full."""
        self.siblings = siblings
        self.remotes = remotes
        self.held: Hold | None = None
        """It is held for a replica already, and the first of those."""
        self.arrived_ns = 0

    def count(self) -> int:
        """All of them."""
        return (self.replicas.bit_count() + self.siblings.bit_count()) + self.remotes.bit_count()


class Weighed:
    """One target that a policy compared, with what it found: the record shows the same figures."""

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
        """How many of the prompt's first blocks the target knows already."""
        self.reading_ns = reading_ns
        self.crowding_ns = crowding_ns
        self.waiting_ns = waiting_ns
        self.distance_ns = distance_ns
        self.total_ns = reading_ns + crowding_ns + waiting_ns + distance_ns

    def costs(self) -> Costs:
        """The same figures, for the record."""
        return Costs(self.reading_ns, self.crowding_ns, self.waiting_ns, self.distance_ns)


class Choice:
    """One slot out of the mask that was asked about."""

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
        """The slot is another gateway's."""
        self.hold: Hold | None = None
        """Set where the request waits for the replica of that slot."""
        self.uncached_bytes = -1
        """What the target still has to read of the prompt, where that is known better than by what matched."""
        self.matched_blocks = matched_blocks
        """How many of the prompt's first blocks the target knows already."""
        self.reason = reason
        """For the record. None: because the policy says so."""
        self.candidates = -1
        """Targets that were looked at; −1: all of the offer."""
        self.replicas: list[Weighed] = []
        """Replicas that were compared; the record asks `costs_at_replica` about those that were not."""
        self.peers: list[Weighed] = []
        """Peers that were compared; the record asks `costs_at_peer` about those that were not."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy(ABC):
    """One policy of one gateway, for as long as the config names it. It is told in order what happens to targets, and
    asked between."""

    def __init__(self, fleet: Fleet, config: PlacementConfig) -> None:
        self.fleet = fleet
        self.config = config

    @staticmethod
    def check_options(options: Mapping[str, object]) -> None:
        """Raise ValueError, in words, over `policy_options` that make no sense. Asked before they get into a config."""
        if options:
            raise ValueError(f"{', '.join(options)}: this policy has no options")

    # What it is asked

    @abstractmethod
    def weigh(self, profile: RequestProfile, offer: Offer, now_ns: int, /) -> Choice | None:
        """One target of the offer, now or, by a hold, once it has done what it is at; None where none will do at this
        moment.

        In shadow mode it may be asked about other regions as well, before it is asked without them, and then not
        followed: state follows what was `sent` or `held`.
        """

    def takes_full_replicas(self) -> bool:
        """Whether a choice may be a replica that is full, or a hold for one: then full replicas are in its offers, and
        it competes with waiting. Otherwise `Offer.free` are the replicas to choose from."""
        return False

    def hold_pinned(self, profile: RequestProfile, offer: Offer, slot: int, /) -> Hold | None:  # noqa: ARG002
        """Of what follows a stored response, which this replica of ours made and nobody else has: is it to wait for its
        turn there? None: it goes as soon as the replica may be sent something."""
        return None

    def reading_again_ns(self, uncached_bytes: int) -> float:  # noqa: ARG002
        """How long it takes a replica of ours to read again what so much of a prompt pushes out of its cache, as far as
        is known; 0: nobody waits for the sake of that."""
        return 0.0

    def costs_at_replica(
        self,
        profile: RequestProfile,  # noqa: ARG002
        slot: int,  # noqa: ARG002
        held: Hold | None,  # noqa: ARG002
        matched_blocks: int = -1,  # noqa: ARG002
    ) -> Costs | None:
        """What it would cost there, for the record. How much of the prompt the replica knows may be known already."""
        return None

    def costs_at_peer(self, profile: RequestProfile, slot: int, matched_blocks: int = -1) -> Costs | None:  # noqa: ARG002
        return None

    def wants_prefixes(self) -> bool:
        """Are prefixes to be remembered, for `match_replicas` and `match_peers`? That costs time and memory."""
        return False

    # What it is told

    def configure(self, config: PlacementConfig) -> None:
        """Other settings, under the same policy."""
        self.config = config

    def joined(self, target: Target, slot: int) -> None:  # noqa: B027 - a policy keeps the books that it needs
        """A target has taken the slot."""

    def left(self, target: Target, slot: int) -> None:  # noqa: B027
        """It is gone, and the next one to join may get the slot: what is known of it must go as well."""

    def follows(self, arrived_ns: int, now_ns: int) -> None:  # noqa: B027
        """What is sent next follows a stored response, and nobody was asked: when it came, and what time it is."""

    def sent(self, profile: RequestProfile, target: Target, slot: int, matched_blocks: int) -> None:  # noqa: B027
        """The choice was followed; or the request follows a stored response, and went to the one target that will do
        without anybody being asked."""

    def refused(self, profile: RequestProfile, target: Target, slot: int) -> None:  # noqa: B027
        """A gateway did not take what it was sent."""

    def unread(self, profile: RequestProfile, target: Target, slot: int, matched_blocks: int) -> None:  # noqa: B027
        """An engine refused the request (4xx), so its prompt was not read there."""

    def first_token(self, profile: RequestProfile, matched_blocks: int, took_ns: int) -> None:  # noqa: B027
        """A replica of ours, which knew that much of the prompt, gave its first token this long after it was asked."""

    def expire(self, now_ns: int) -> None:  # noqa: B027
        """Time to forget what was not refreshed for its time to live."""

    def prefilled(self, slot: int, uncached_bytes: int, started_ns: int, now_ns: int) -> None:  # noqa: B027
        """The replica of ours in that slot, asked at `started_ns`, gave a first token, and had so much to read of the
        prompt."""

    def ended(self, slot: int, now_ns: int) -> None:  # noqa: B027
        """A leg at the replica in that slot is over."""

    def answered(self, profile: RequestProfile, prompt_tokens: int, output_tokens: int) -> None:  # noqa: B027
        """A replica of ours has told how many tokens that were."""

    def written(self, took_ns: int) -> None:  # noqa: B027
        """A replica of ours has streamed an answer to its end: how long after the first token that was."""

    def held(self, hold: Hold) -> None:  # noqa: B027
        """A request waits for a replica, as it was chosen to."""

    def unheld(self, hold: Hold) -> None:  # noqa: B027
        """It does so no longer."""


PolicyFactory = Callable[[Fleet, PlacementConfig], Policy]
PlugIns = Callable[[str], PolicyFactory]
"""Finds the policies that do not come with us, by name. Whoever puts a name into a config has made sure that it can."""


def no_plug_ins(name: str) -> PolicyFactory:
    raise AssertionError(f"there is no placement policy {name}, and nobody handed in others")


def share_of(profile: RequestProfile, blocks: int) -> float:
    """Of the prompt, by bytes."""
    return blocks * profile.prefix_block_bytes / max(1, profile.prompt_bytes)


def is_worth_following(profile: RequestProfile, matched_blocks: int, share_min: float) -> bool:
    if not matched_blocks:
        return False
    return matched_blocks * profile.prefix_block_bytes >= share_min * profile.prompt_bytes
