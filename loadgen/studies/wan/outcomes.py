"""Measurements of the faults that were played, and the settings that they were measured with. Values only."""

from __future__ import annotations

import msgspec

TIMEOUT_S = 10.0
"""Time-out of the clients' SDK for each part of an answer."""
NAME_ATTEMPTS = 2
"""Times that a client asks its region's name server, as glibc's resolver does."""
NAME_TIMEOUT_S = 5.0
"""Time-out of each time, as glibc's. BIND asks the mesh's name servers one after the other, and needs seconds where the
first ones are silent."""
USERS = (12, 4, 4)
"""Users in each region; those of the first are more than its engine has room for, so that requests overflow."""
SLOTS = 4
WARM_S = 10.0
"""Time before a fault in which clients ask, and in which each link learns how late the other end's signs of life
are."""
PROMPT_BYTES = 3_000
"""Bytes of each question: larger than a packet."""
OVERLAP_S = 6.5
"""Longest time in which two gateways serve one replica after both hear the mesh (docs/concepts/controller.md)."""
UNWRITTEN_S = 0.5
"""Time for which a gateway keeps audit lines before it writes them (`audit.flush_interval`)."""
BOTH_LED_S = 3.0
"""Longest time for which a controller that wakes after another one leads says that it leads: until its next renewal
fails (`store.renew_interval`, `store.call_timeout`)."""
RECONNECT_S = 10.0
"""Longest delay before a gateway dials again (`reconnect_max`): until then it hears nothing, although links are
sound."""


class PhaseSeen(msgspec.Struct, frozen=True):
    """Calls that were sent in one phase of a case."""

    requests: int
    failures: tuple[str, ...]
    """Text of each failure, in the client's words."""
    unfinished: int
    """Calls without an end when the case was over."""
    ttft_s: tuple[float, ...]
    """Time to the first part of each answer that began, in ascending order."""


class FaultOutcome(msgspec.Struct, frozen=True):
    """Measurements of one fault, played once."""

    fault: str
    phases: dict[str, PhaseSeen]
    """Phases before, during and after the fault, of all clients together."""
    cut_off: PhaseSeen
    """During it, of the clients of the region at which it strikes."""
    led_away: int
    """Calls of these clients that another region's gateway answered while it lasted."""
    moved_s: float | None
    """Seconds from the beginning until another region's gateway answered a call that these clients made after it; None:
    none did."""
    returned_s: float | None
    """Seconds from the end until their own region's gateway answered a call that they made after it."""
    losses: dict[str, float]
    """Observer and lost peer, with the seconds from the beginning after which it was first seen, while it lasts."""
    down_s: dict[str, float]
    """Regions that the controller took for down, with the seconds from the beginning."""
    led_s: float | None
    """Seconds from the beginning until another controller led; None: none did."""
    both_led_s: float
    """Longest time for which two controllers said that they lead."""
    reassigned: int
    """Looks, while it lasts, at which a gateway served other replicas than before."""
    certificates_refused: int
    """Hosts that gateways refused because of the certificate that they showed."""
    restarts: int
    """Processes of gateways, engines and controllers that ended by themselves, and were started again."""
    excused: int
    """Calls that failed because of what the fault does to the client itself: see `excuse_of`."""
    whole_s: float | None
    """Seconds from the end of the fault until the mesh was whole; None: not in time."""
    overlap_s: float
    """Longest time in which two gateways served one replica, from the end of the fault on."""
    twice: int
    """Requests that engines ran to the end more than once."""
    violations: tuple[str, ...]
    lines: int
    """Lines of all audit logs."""
    forwarded: int
    """Requests that another gateway took in; those that it refused are not counted."""
    carried: int
    lost: int
    """Packets between the hosts."""
    late: int
    """Packets that the emulated network delivered late, because the machine was busy."""
    late_max_ms: float


class PlayedFaults(msgspec.Struct):
    """Faults that were played, each as often as there are rounds."""

    outcomes: list[FaultOutcome] = msgspec.field(default_factory=list)
    unplayed: list[str] = msgspec.field(default_factory=list)
    """Faults that could not be played, with the reason."""
    is_interrupted: bool = False
    """True if a signal ended the run before all were played."""
