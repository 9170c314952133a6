"""A team's own name server as a provider, through signed dynamic updates (RFC 2136 with TSIG, RFC 8945).

Each write is one update, which is applied whole or not at all, and only where every record that it replaces is as it
was read. The server gives all clients the same answer, so that the provider refuses a mesh with a closed jurisdiction.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import dns.asyncbackend
import dns.asyncquery
import dns.exception
import dns.message
import dns.name
import dns.rcode
import dns.rdataset
import dns.rdatatype
import dns.rrset
import dns.tsig
import dns.update
from msgspec.structs import replace

from controller.dns.claim import OwnerClaim, check_claim, refuse_foreign
from controller.dns.config import Rfc2136Config, secret_of
from controller.dns.provider import (
    Changes,
    DnsError,
    DnsRefused,
    DnsUnavailable,
    PublishedRecords,
    check_lease,
    check_zone,
)
from controller.dns.rfc2136_records import (
    Key,
    claim_key,
    claim_of,
    is_same,
    owned_keys,
    published,
    wanted,
)
from controller.lease import Lease
from mesh.naming.tree import RecordTree
from mesh.task_group import TaskGroup

_SECOND_NS = 1_000_000_000
_CONNECTIONS = 8
"""Connections used at once while all records are read."""
_UPDATE_BYTES_MAX = 60_000
_MOVED = frozenset({dns.rcode.NXRRSET, dns.rcode.YXRRSET, dns.rcode.NXDOMAIN, dns.rcode.YXDOMAIN})
"""Answers that say that the records are not as they were read."""
_Answer = TypeVar("_Answer")


class Rfc2136Dns:
    """One zone at its primary server."""

    tells_clients_apart = False

    def __init__(
        self,
        config: Rfc2136Config,
        key_secret: str,
        zone: str,
        owner: str,
        lease: Lease,
        *,
        on_call: Callable[[str, str], None] = lambda _call, _result: None,
    ) -> None:
        """`zone` is the mesh's name, with the final dot; `on_call` is called with each query or update and its result.
        Raises ValueError for a secret that is not base64."""
        assert config.server is not None, "checked with the file"
        self._server = config.server
        self._timeout_s = config.timeout_ns / _SECOND_NS
        self._name = dns.name.from_text(zone)
        self._zone = dns.name.from_text(config.zone or zone)
        self._key = dns.tsig.Key(config.key_name, secret_of(key_secret), config.key_algorithm)
        self._owner = owner
        self._lease = lease
        self._on_call = on_call
        self._found: dict[Key, dns.rrset.RRset] | None = None
        """Records as last read or written; None: unknown."""
        self._is_closed = False

    async def publish(self, tree: RecordTree, changes: Changes) -> int:
        check_zone(tree, self._name.to_text())
        if changes.is_whole:
            self._found = None
        for last in (False, True):
            found = await self._known(tree)
            update = self._update(tree, found, self._lease.token)
            if not update.changed:
                return 0
            check_lease(self._lease, self._timeout_s)
            self._found = None  # unknown until the answer is there
            rcode = await self._exchange(update.message)
            if rcode == dns.rcode.NOERROR:
                self._found = update.after
                return len(update.changed)
            if rcode not in _MOVED or last:
                raise _not_taken(rcode, self._server)
        raise AssertionError("the second time is the last")

    async def settle(self) -> None:
        """Return at once: other servers of the zone follow the primary by NOTIFY, as a rule within a second."""

    async def plan(self, tree: RecordTree) -> tuple[str, ...]:
        check_zone(tree, self._name.to_text())
        self._found = None
        found = await self._known(tree)
        claim = claim_of(found, self._name)
        return tuple(self._update(tree, found, self._lease.token if claim is None else claim.term).lines)

    async def read(self) -> PublishedRecords | None:
        self._found = None
        claim = claim_of(await self._read([claim_key(self._name)]), self._name)
        if claim is None or claim.owner != self._owner:
            return None
        return published(await self._read(owned_keys(self._name, claim)), claim, self._name)

    async def close(self) -> None:
        self._is_closed = True

    def _update(self, tree: RecordTree, found: dict[Key, dns.rrset.RRset], term: int) -> _Update:
        """Build the update from the records found to the tree's. Raises DnsRefused and DnsOutdated."""
        claim = claim_of(found, self._name)
        if claim is not None:
            check_claim(claim, self._owner, term, tree.version)
        said = OwnerClaim.following(claim, self._owner, term, tree)
        try:
            after = wanted(tree, said)
            ours = set(() if claim is None else owned_keys(self._name, claim))
        except ValueError as error:
            raise DnsRefused(f"version {tree.version} cannot be said there: {error}") from error
        refuse_foreign(f"{name} {dns.rdatatype.to_text(kind)}" for name, kind in found if (name, kind) not in ours)
        update = _Update(self._zone, self._key, found, after)
        if (
            claim is not None
            and replace(claim, writes=said.writes) == said
            and update.changed == [claim_key(self._name)]
        ):
            return _Update(self._zone, self._key, found, found)  # only the count of writes differs
        return update

    # Queries

    async def _known(self, tree: RecordTree) -> dict[Key, dns.rrset.RRset]:
        if self._found is None:
            try:
                claim = claim_of(await self._read([claim_key(self._name)]), self._name)
                claims = [
                    OwnerClaim.following(claim, self._owner, self._lease.token, tree),
                    *([claim] if claim else []),
                ]
                keys = dict.fromkeys(key for each in claims for key in owned_keys(self._name, each))
            except ValueError as error:
                raise DnsRefused(f"version {tree.version} cannot be said there: {error}") from error
            self._found = await self._read(keys)
        return self._found

    async def _read(self, keys: Iterable[Key]) -> dict[Key, dns.rrset.RRset]:
        """Query the server itself for record sets; each answer is signed."""
        self._check_open()
        waiting = list(keys)
        found: dict[Key, dns.rrset.RRset] = {}

        async def ask_all(asked: list[Key], address: str) -> None:
            backend = dns.asyncbackend.get_default_backend()
            destination = (address, self._server.port)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            made = await backend.make_socket(family, socket.SOCK_STREAM, 0, None, destination, self._timeout_s)  # type: ignore[no-untyped-call]
            async with made as connection:
                for name, kind in asked:
                    query = dns.message.make_query(name, kind, flags=0)
                    query.use_tsig(self._key)
                    answer = await dns.asyncquery.tcp(query, address, self._timeout_s, sock=connection)
                    if answer.rcode() not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
                        raise _not_taken(answer.rcode(), self._server)
                    for each in answer.answer:
                        found[each.name, each.rdtype] = each

        async def ask() -> None:
            address = await self._address()
            async with TaskGroup() as tasks:
                for part in range(min(_CONNECTIONS, len(waiting))):
                    tasks.create_task(ask_all(waiting[part::_CONNECTIONS], address))

        await self._within("read", ask(), times=1 + len(waiting) / _CONNECTIONS)
        return found

    async def _exchange(self, message: dns.update.UpdateMessage) -> dns.rcode.Rcode:
        async def send() -> dns.rcode.Rcode:
            address = await self._address()
            answer = await dns.asyncquery.tcp(message, address, self._timeout_s, self._server.port)
            return answer.rcode()

        return await self._within("update", send())

    async def _address(self) -> str:
        if self._server.is_numeric:
            return self._server.host
        found = await asyncio.get_running_loop().getaddrinfo(
            self._server.host, self._server.port, type=socket.SOCK_STREAM
        )
        return str(found[0][4][0])

    async def _within(self, call: str, work: Awaitable[_Answer], times: float = 1) -> _Answer:
        """Limit the time of a call, and translate its errors. Raises DnsUnavailable."""
        try:
            async with asyncio.timeout(self._timeout_s * times):
                answer = await work
        except ExceptionGroup as group:
            self._on_call(call, "failed")
            raise self._fault(group.exceptions[0]) from group
        except (dns.exception.DNSException, OSError, EOFError) as error:
            self._on_call(call, "failed")
            raise self._fault(error) from error
        self._on_call(call, "done")
        return answer

    def _fault(self, error: BaseException) -> DnsError:
        if isinstance(error, DnsError):
            return error
        if isinstance(error, TimeoutError | dns.exception.Timeout):
            return DnsUnavailable(f"{self._server} has not answered within {self._timeout_s:g} s")
        if isinstance(error, dns.tsig.PeerError | dns.tsig.BadSignature | dns.tsig.BadTime):
            key = self._key.name.to_text(omit_final_dot=True)
            words = str(error) or type(error).__name__
            return DnsUnavailable(f"{self._server} and we do not agree on the key {key}: {words}")
        return DnsUnavailable(f"{self._server}: {str(error) or type(error).__name__}")

    def _check_open(self) -> None:
        if self._is_closed:
            raise DnsError("the name server was let go of")


class _Update:
    """One signed update, and the changes that it makes."""

    def __init__(
        self,
        zone: dns.name.Name,
        key: dns.tsig.Key,
        found: dict[Key, dns.rrset.RRset],
        after: dict[Key, dns.rrset.RRset],
    ) -> None:
        """Raises DnsRefused where the update is too long for one message."""
        self.after = after
        self.changed = [each for each in {**found, **after} if not is_same(found.get(each), after.get(each))]
        self.message = dns.update.UpdateMessage(zone, keyring=key)
        self.lines: list[str] = []
        for at in self.changed:
            self._add(at, found.get(at), after.get(at))
        if self.changed:
            try:
                self.message.to_wire(max_size=_UPDATE_BYTES_MAX)
            except dns.exception.TooBig as error:
                count = len(self.changed)
                raise DnsRefused(
                    f"an update of {count} record sets is too long for one message of {_UPDATE_BYTES_MAX} bytes"
                ) from error

    def _add(self, at: Key, old: dns.rrset.RRset | None, new: dns.rrset.RRset | None) -> None:
        name, kind = at
        if old is None:
            self.message.absent(name, kind)
        else:
            self.message.present(name, dns.rdataset.from_rdata_list(0, list(old)))  # a prerequisite cannot test a TTL
            self.message.delete(name, kind)
            self.lines += [f"- {line}" for line in old.to_text().splitlines()]
        if new is not None:
            self.message.add(name, new.to_rdataset())
            self.lines += [f"+ {line}" for line in new.to_text().splitlines()]


def _not_taken(rcode: dns.rcode.Rcode, server: object) -> DnsError:
    words = {
        dns.rcode.REFUSED: "it refuses: the key may not change these names",
        dns.rcode.NOTAUTH: "it does not answer for the zone, or knows the key not",
        dns.rcode.NOTZONE: "a name is outside its zone",
        dns.rcode.SERVFAIL: "it failed",
    }.get(rcode, "")
    if rcode in _MOVED:
        words = "what is there changed twice while we wrote"
    return DnsUnavailable(f"{server}: {dns.rcode.to_text(rcode)}" + (f", {words}" if words else ""))
