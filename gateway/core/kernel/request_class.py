"""Class of a request: all properties that decide which targets may serve it, with the masks of those targets."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.core.kernel.pools import PoolFit
from gateway.core.vocabulary import (
    ALL_CONNECTORS,
    Connector,
    ModelName,
    NeededIdentity,
    Place,
    PlaceRule,
    ServiceClass,
    Target,
)


class ClassTargets:
    """Masks of the targets that one request class may go to, with the versions of the target sets they were computed
    from."""

    __slots__ = (
        "available_peers",
        "config",
        "eligible_replicas",
        "peers_version",
        "preferred_replicas",
        "replicas_version",
    )

    def __init__(self, config: object) -> None:
        self.config = config
        """Placement config that the masks were computed under."""
        self.replicas_version = -1
        self.eligible_replicas = 0
        """Mask of the eligible replicas, in any pool that takes the class."""
        self.preferred_replicas = 0
        """Mask of the eligible replicas in the class's preferred pool."""
        self.peers_version = -1
        self.available_peers = 0


@dataclass(slots=True)
class RequestClass:
    """All properties of a request that decide its eligible targets. Immutable once made, because it is a dictionary
    key."""

    model: ModelName
    rule: PlaceRule
    may_stay_in_region: bool
    """The request may go to another gateway of this region."""
    may_cross_regions: bool
    failed_replicas: int = 0
    """Slots of the replicas where an attempt of this request failed; they are avoided while another target exists. The
    request itself remembers targets, not slots: a new target in the same slot is not blamed."""
    failed_peers: int = 0
    pinned: Target | None = None
    """Only target that may serve it: the one that has the stored response it refers to."""
    is_control: bool = False
    """The request needs a target that answers, not an available one."""
    connectors: frozenset[Connector] = ALL_CONNECTORS
    """Connectors that can hand the request over from prefill to decode worker."""
    origin: Place | None = None
    """Place where the request arrived, set while some replicas accept only certain origins; None: irrelevant."""
    fit: PoolFit | None = None
    """Pools that the request fits into by its size; None: any."""
    appends: bool = False
    """The request appends to an answer that has begun: it needs a replica that can, and goes before those that are new
    within its service class."""
    identity: NeededIdentity | None = None
    """Identity of the model that its targets must have; None: any."""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    """Service class; every class but interactive goes only to targets with spare room."""
    goes_first: bool = False
    """The request is given the slots of running ones that yield. One that yielded for so long that it is served as
    interactive is not."""
    is_patient: bool = False
    """A policy may let the request wait beside targets that would take it; others of its kind do not wait behind it."""
    _hash: int = field(init=False, compare=False, repr=False, default=0)
    targets: ClassTargets | None = field(init=False, compare=False, repr=False, default=None)
    """Masks of its eligible targets, cached by `Eligibility` until the fleet changes."""

    def __hash__(self) -> int:
        """Hash computed once: the class is looked up several times per request and never changes."""
        if not self._hash:
            told = (self.model, self.rule, self.may_stay_in_region, self.may_cross_regions)
            own = (
                self.failed_replicas,
                self.failed_peers,
                self.pinned,
                self.is_control,
                self.connectors,
                self.origin,
                self.fit,
                self.appends,
                self.identity,
                self.service_class,
                self.goes_first,
                self.is_patient,
            )
            self._hash = hash((told, own))
        return self._hash

    @property
    def service_rank(self) -> int:
        return self.service_class.rank
