from __future__ import annotations

from loadgen.engine.blocks import Holding
from loadgen.engine.leases import Leases


def test_each_lease_ends_once() -> None:
    leases, held = Leases(), Holding(b"")
    leases.grant("a", held, 100)
    assert (len(leases), "a" in leases, leases.next_ns) == (1, True, 100)

    assert leases.end("a") is held
    assert leases.end("a") is None
    assert (len(leases), leases.next_ns, leases.expire(1_000), leases.expired) == (0, None, [], 0)


def test_what_nobody_fetches_expires_and_is_counted() -> None:
    leases = Leases()
    for name, until_ns in (("a", 300), ("b", 100), ("c", 200)):
        leases.grant(name, Holding(b""), until_ns)
    assert leases.next_ns == 100

    assert [name for name, _ in leases.expire(200)] == ["b", "c"]
    assert (leases.expired, leases.next_ns, len(leases)) == (2, 300, 1)


def test_a_lease_may_be_renewed_and_is_never_cut_short() -> None:
    leases = Leases()
    leases.grant("a", Holding(b""), 300)

    assert leases.renew("a", 200)
    assert leases.next_ns == 300
    assert leases.renew("a", 400)
    assert leases.next_ns == 400
    assert not leases.renew("b", 400)
