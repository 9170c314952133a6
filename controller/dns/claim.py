"""Ownership of the published names: one TXT record beside them holds the owner, the last writer's term and the names.

Every write replaces that record, and takes place only if the record is as the writer read it: where two controllers
both believe they lead, the service itself refuses one of them. Records at names outside the claim are never touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from controller.dns.provider import DnsOutdated, DnsRefused
from gateway.core.vocabulary import RegionName
from mesh.naming.tree import RecordTree

LABEL = "_nightside"
"""Label of the record, below the mesh's name and below each region's."""
TTL_S = 60
_HERITAGE = "heritage=nightside"
_NUMBERS = "term", "version", "writes", "port", "tls", "targets"
_STRING_CHARACTERS_MAX = 255
_CHARACTERS_MAX = 3_800
"""Total length of the strings that any provider accepts in one TXT record."""


class OwnerClaim(Struct, frozen=True):
    owner: str
    term: int
    """Fencing token of the last writer."""
    version: int
    """Version of the tree that is published whole."""
    writes: int
    """Count that rises with each write, so that its claim identifies a write."""
    regions: tuple[RegionName, ...]
    """Regions whose names are claimed, besides the mesh's name."""
    port: int
    tls: bool
    """Port and TLS identify the services whose names are claimed."""
    has_targets: bool = False
    """Names that HTTPS records of these regions may lead to are claimed too."""

    @classmethod
    def following(cls, before: OwnerClaim | None, owner: str, term: int, tree: RecordTree) -> OwnerClaim:
        """Return the claim of the next write, which publishes `tree`."""
        writes = 1 if before is None else before.writes + 1
        regions = tuple(sorted(each.region for each in tree.areas))
        has_targets = tree.tls and any(each.further for each in tree.areas)
        return cls(owner, term, tree.version, writes, regions, tree.port, tree.tls, has_targets)

    def strings(self) -> tuple[str, ...]:
        """Return the strings of the TXT record. Raises ValueError where they do not fit into one."""
        numbers = f"term={self.term} version={self.version} writes={self.writes}"
        service = f"port={self.port} tls={int(self.tls)} targets={int(self.has_targets)}"
        found = (f"{_HERITAGE} owner={self.owner}", numbers, service, *_lines(self.regions))
        length = sum(map(len, found))
        if length > _CHARACTERS_MAX:
            raise ValueError(
                f"the names of {len(self.regions)} regions make {length} characters, and {_CHARACTERS_MAX} are taken"
            )
        return found


def claim_in(strings: Iterable[str]) -> OwnerClaim | None:
    """Parse a TXT record's strings; None where the record is not a claim of Nightside's."""
    words = [word for each in strings for word in each.split()]
    if not words or words[0] != _HERITAGE:
        return None
    said: dict[str, list[str]] = {}
    for word in words:
        key, _, text = word.partition("=")
        said.setdefault(key, []).append(text)
    try:
        term, version, writes, port, tls, targets = (int(said[key][0]) for key in _NUMBERS)
        regions = tuple(map(RegionName, said.get("region", ())))
        return OwnerClaim(said["owner"][0], term, version, writes, regions, port, bool(tls), bool(targets))
    except (KeyError, ValueError):
        return None


def check_claim(claim: OwnerClaim, owner: str, term: int, version: int) -> None:
    """Check that the leader of `term` may write `version` after this claim. Raises DnsRefused where the names have
    another owner, and DnsOutdated after a later term or a newer version."""
    if claim.owner != owner:
        raise DnsRefused(
            f"the TXT record at {LABEL} says that the names belong to {claim.owner!r}, and we are {owner!r}"
        )
    if claim.term > term:
        raise DnsOutdated(f"the leader of term {claim.term} has written there, and ours is {term}")
    if claim.term == term and claim.version > version:
        raise DnsOutdated(f"version {claim.version} is said there already, and this is {version}")


def refuse_foreign(foreign: Iterable[str]) -> None:
    """Raise DnsRefused where records of other origin stand at names to be taken."""
    found = sorted(set(foreign))
    if found:
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise DnsRefused(f"not ours, and in the way: {', '.join(found[:5])}{more}; their owner has to remove them")


def _lines(regions: Iterable[RegionName]) -> Iterator[str]:
    line = ""
    for each in regions:
        word = f"region={each}"
        if line and len(line) + 1 + len(word) > _STRING_CHARACTERS_MAX:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
    if line:
        yield line
