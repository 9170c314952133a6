"""Stories of two controllers over one shared store, and the allowed result of each step: one case per line.

Each case is a sequence of steps, each with its result behind `->`; without one, the step succeeds. After every step, no
gateway may have gone back to an older version, no leader of an older term may have written DNS records, and no two
leases may be valid at the same time. At the end, no replica may be served by two gateways that have heard each other.

- `7 s`: time passes. `a 7 s`: on a's clock alone. `b looks 7 s`: meanwhile b tries each second to lead.
- `a leads`, `a renews`, `a gives back`. A lease lasts 6 s, of which a margin of 1 s is deducted.
- `a writes r1 to us` (or eu): a assigns the replica r1 to us. `a tells us`: a sends us the newest assignment.
- `a publishes`: a writes the DNS records; `a reads names` and `a writes names` are its two halves.
- `a recovers`: a checks its lease, as before it restarts a gateway.
- `a starts to write r1 to us`, `a ends it`: the request is under way in between. `a asks to renew`, `a is answered`:
  the answer is under way in between. `a is robbed`: another holder takes the store without waiting for the lease.
  `b registers us`: b learns the version that us serves by.
- `store is gone` (or `gone for a`), `store is back`; `store keeps silent`: the next write takes effect without an
  answer. `store is late 3 s`: the next answer takes so long. `store forgets`: a copy from before the last write
  replaces it; `store forgets all`: an empty store replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SplitCase:
    name: str
    story: str
    """Steps, separated by semicolons; each may have a result behind `->`."""
    rates: tuple[float, float] = (1.0, 1.0)
    """Rates of both controllers' clocks."""
    offsets_s: tuple[int, int] = (0, 0)
    """Initial times of both controllers' clocks, in seconds."""


_A_LEADS = "a leads; a writes r1 to us; a tells us; a tells eu"
_B_FOLLOWS = f"{_A_LEADS}; b looks 7 s; b writes r1 to eu"
YEARS = 10 * 365 * 86_400

# fmt: off
SPLIT_CASES = (
    SplitCase("one leads, the other waits", f"{_A_LEADS}; b leads -> taken; a renews; a publishes; a recovers"),
    SplitCase("one gives back, the other follows at once", f"{_A_LEADS}; a gives back; b leads; b writes r1 to eu; b tells us; b tells eu; b publishes"),
    SplitCase("one that has given back does nothing more", f"{_A_LEADS}; a gives back; a publishes -> over; a recovers -> over; b leads; a publishes -> over"),
    SplitCase("one that is renewed is never had", f"{_A_LEADS}; b looks 4 s -> taken; a renews; b looks 4 s -> taken; a renews; b looks 5 s -> taken"),
    SplitCase("the order of a leader that was followed", f"{_B_FOLLOWS}; a writes r1 to us -> lost; a tells us; b tells eu; b tells us"),
    SplitCase("a leader that was followed and does not know it, at a gateway that knows", f"{_B_FOLLOWS}; b tells us; b tells eu; a tells us -> older; a tells eu -> older"),
    SplitCase("gateways that hear both, in turn", f"{_B_FOLLOWS}; b tells eu; a tells us; b tells us; a tells eu -> older; a tells us -> older; b tells us"),
    SplitCase("each gateway hears another", f"{_B_FOLLOWS}; a tells us; b tells eu; us hears eu; eu hears us"),
    SplitCase("a replica that goes to and fro", f"{_B_FOLLOWS}; b tells eu; us hears eu; b writes r1 to us; b tells us; eu hears us; a tells us -> older"),
    SplitCase("the word of a leader that was followed comes back from a peer", f"{_B_FOLLOWS}; b tells us; a tells eu; us hears eu; eu hears us; b tells eu"),
    SplitCase("names of a leader that was followed", f"{_B_FOLLOWS}; b publishes; a publishes -> over"),
    SplitCase("names, when the new one has not written yet", f"{_A_LEADS}; a publishes; b looks 7 s; a publishes -> over; b publishes"),
    SplitCase("a pause between a check and a write of names", f"{_A_LEADS}; a publishes; a reads names; b looks 7 s; b publishes; a writes names -> changed; a publishes -> over"),
    SplitCase("a pause between a check and a write, and nobody wrote", f"{_A_LEADS}; a publishes; a reads names; b looks 7 s; a writes names; b publishes"),
    SplitCase("a pause in the middle of an order", f"{_A_LEADS}; a starts to write r1 to us; b looks 7 s; b writes r1 to eu; a ends it -> lost; a publishes -> over; a recovers -> over; b tells us; b tells eu"),
    SplitCase("a pause of one's own, and nobody came", f"{_A_LEADS}; 60 s; a publishes -> over; a renews; a publishes; a writes r1 to eu"),
    SplitCase("a pause of one's own, and somebody came and went", f"{_A_LEADS}; b looks 7 s; b gives back; a renews -> lost; a publishes -> over; a writes r1 to us -> lost"),
    SplitCase("an answer to a renewal that is older than the loss", f"{_A_LEADS}; a asks to renew; a is robbed; a writes r1 to us -> lost; a is answered; a publishes -> over; a recovers -> over"),
    SplitCase("an order that is lost ends the lease at once", f"{_A_LEADS}; a renews; a is robbed; a writes r1 to us -> lost; a publishes -> over; a recovers -> over"),
    SplitCase("a renewal that takes almost a lease", f"{_A_LEADS}; store is late 4 s; a renews; 2 s; a publishes -> over"),
    SplitCase("a renewal that takes longer than a lease", f"{_A_LEADS}; store is late 9 s; a renews; a publishes -> over; a renews; a publishes"),
    SplitCase("a lead that takes longer than a lease", "store is late 9 s; a leads; a publishes -> over; a renews; a publishes"),
    SplitCase("a store that is gone for all", f"{_A_LEADS}; store is gone; b looks 30 s -> unavailable; a renews -> unavailable; a publishes -> over; store is back; b leads -> taken; a renews; a publishes"),
    SplitCase("a store that is back is not had at once", f"{_A_LEADS}; b looks 3 s -> taken; store is gone; 30 s; store is back; b leads -> taken; b looks 5 s -> taken; a renews; b looks 5 s -> taken"),
    SplitCase("a store that is gone for the one that leads", f"{_A_LEADS}; store is gone for a; a renews -> unavailable; b looks 7 s; b writes r1 to eu; store is back; a renews -> lost; a tells us; b tells us; a tells us -> older"),
    SplitCase("an order that is not answered", f"{_A_LEADS}; store keeps silent; a writes r1 to eu -> uncertain; a tells eu; b looks 7 s; b writes r1 to us; b tells us; b tells eu"),
    SplitCase("an order that is not answered, from a leader that is followed", f"{_A_LEADS}; store keeps silent; a writes r1 to eu -> uncertain; b looks 7 s; b writes r1 to us; a writes r1 to eu -> lost; b tells us; b tells eu"),
    SplitCase("a store that forgets an order", f"{_A_LEADS}; a writes r1 to eu; a tells eu; store forgets; a renews -> lost; a publishes -> over; b looks 7 s; b writes r1 to us; b tells us; b tells eu"),
    SplitCase("a store that forgets who led", f"{_A_LEADS}; store forgets all; b leads; b tells us -> older; b registers us; b writes r1 to eu; b tells eu; b tells us; a renews -> lost; a tells us -> older; a tells eu -> older"),
    SplitCase("a store that forgets who led, and gives the same term twice", f"{_A_LEADS}; store forgets all; b leads; a writes r1 to us -> lost; a renews -> lost; a publishes -> over; b registers eu; b publishes; b tells us; b tells eu"),
    SplitCase("names keep the higher term of a store that forgets", f"{_A_LEADS}; a gives back; a leads; a tells us; a publishes; store forgets all; b leads; b publishes -> outdated; a publishes; b registers us; b publishes; a publishes -> outdated"),
    SplitCase("a clock ten years ahead", f"{_B_FOLLOWS}; b publishes; a publishes -> over; b tells us", offsets_s=(YEARS, 0)),
    SplitCase("a clock ten years behind", f"{_B_FOLLOWS}; b publishes; a publishes -> over; b tells us", offsets_s=(0, YEARS)),
    SplitCase("a clock of the one that waits goes too fast", f"{_A_LEADS}; b looks 6 s; a publishes -> over; b publishes", rates=(1.0, 1.15)),
    SplitCase("a clock of the one that leads goes too slowly", f"{_A_LEADS}; b looks 7 s; a publishes -> over; b publishes", rates=(0.85, 1.0)),
    SplitCase("a clock of the one that waits goes too slowly", f"{_A_LEADS}; b looks 10 s -> taken; a publishes -> over; b looks 20 s", rates=(1.0, 0.5)),
    SplitCase("a clock that jumps ahead while one leads", f"{_A_LEADS}; a 100 s; a publishes -> over; a renews; a publishes; b looks 4 s -> taken"),
    SplitCase("a clock that jumps ahead while one waits", f"{_A_LEADS}; b looks 2 s -> taken; b 3 s; b leads -> taken; a renews; b looks 4 s -> taken"),
    SplitCase("a machine that sleeps while it waits", f"{_A_LEADS}; b looks 2 s -> taken; b 100 s; b leads -> taken; a publishes"),
    SplitCase("both try to lead at the same moment", f"{_A_LEADS}; a gives back; a leads; b leads -> taken"),
    SplitCase("three terms, heard in the wrong order", f"{_B_FOLLOWS}; b gives back; a leads; a writes r1 to us; a tells us; b tells us -> older; b tells eu; eu hears us; a tells eu; b tells eu -> older"),
)
# fmt: on
