"""Reads the operators' table of regions, which policy files and the controller's file hold, or name the file of, so
that all of them can share one. A table that cannot be read is refused as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationInfo

from gateway.core.kernel.regions import KnownRegion, RegionTable
from gateway.core.vocabulary import Jurisdiction, Place, RegionName
from mesh.descriptions import SchemaFrom, describe_keys
from mesh.faults import FileError, FileFault, KeyFaults
from mesh.values import FileContext
from mesh.yaml_file import read_yaml

TABLE_BYTES_MAX = 256 * 1024
REGIONS_MAX = 1024
JURISDICTIONS_MAX = 64
"""Most jurisdictions: a rule that is limited to the table travels with each forward, and lists them one by one."""
RANGES_MAX = 256
_DEPTH_MAX = 8
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?(?:/[!-~]*)?")
_HOST_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""Host name whose last label begins with a letter: one that begins with a digit is an address in one of many
spellings."""

Name = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def range_fault(text: str) -> str:
    """Fault of a range of addresses as it is written; empty where it can be used."""
    if _looks_like_address(text):
        try:
            ip_network(text)
        except ValueError as error:
            return f"{text!r} is not a network: {error}"
        return ""
    if _HOST_NAME.fullmatch(text.removeprefix(".")) is None or len(text) > 253:
        return f"{text!r} is neither a network such as 10.2.0.0/16 nor a host name, or the end of one, in small letters"
    return ""


def _looks_like_address(text: str) -> bool:
    return "/" in text or ":" in text or text[-1:].isdigit()


def _check_range(text: str) -> str:
    if fault := range_fault(text):
        raise ValueError(fault)
    return text


class RegionEntry(BaseModel):
    """Region in the operators' table."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Region", json_schema_extra=describe_keys)

    jurisdiction: Name
    """Jurisdiction of the region, in the one spelling that all files share."""
    replicas: Annotated[
        tuple[Annotated[str, Field(strict=True, max_length=253), AfterValidator(_check_range)], ...],
        Field(max_length=RANGES_MAX),
    ] = ()
    """Ranges in which gateways of other regions may reach the region's replicas: networks (10.2.0.0/16), host names,
    and endings of host names that begin with a dot. Without any, no other gateway takes its replicas over."""
    announced_by: Annotated[tuple[Name, ...], Field(max_length=RANGES_MAX)] = ()
    """Further regions whose gateways may announce replicas in this one."""

    def as_known(self) -> KnownRegion:
        return KnownRegion(
            Jurisdiction(self.jurisdiction), self.replicas, tuple(RegionName(each) for each in self.announced_by)
        )


def _written_out(value: object) -> object:
    """Long form of the short one, `eu-west-1: EU`."""
    return {"jurisdiction": value} if isinstance(value, str) else value


Region = Annotated[
    RegionEntry,
    BeforeValidator(_written_out),
    SchemaFrom(lambda: {"anyOf": [{"type": "string"}, RegionEntry.model_json_schema()]}),
]


def _check_jurisdictions(regions: dict[str, RegionEntry]) -> dict[str, RegionEntry]:
    if len({each.jurisdiction for each in regions.values()}) > JURISDICTIONS_MAX:
        raise ValueError(f"names more than {JURISDICTIONS_MAX} jurisdictions")
    return regions


Regions = Annotated[dict[Name, Region], Field(max_length=REGIONS_MAX), AfterValidator(_check_jurisdictions)]


class TableFile(BaseModel):
    """File with the table, for all files that name it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1]
    regions: Regions


def _read_where_named(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    try:
        return read_table_file(FileContext.of(info).folder / value).regions
    except FileError as error:
        raise KeyFaults(*(FileFault("", f"{error.path.name}: {fault}") for fault in error.faults)) from error


def _schema() -> dict[str, Any]:
    return {
        "anyOf": [
            {"type": "string", "description": "A file beside this one that holds the table."},
            {
                "type": "object",
                "maxProperties": REGIONS_MAX,
                "additionalProperties": {"anyOf": [{"type": "string"}, RegionEntry.model_json_schema()]},
            },
        ]
    }


NamedRegions = Annotated[Regions, BeforeValidator(_read_where_named), SchemaFrom(_schema)]
"""Table, or the name of the file that holds it."""


def read_table_file(path: Path) -> TableFile:
    """Read a file with a table. Raises FileError."""
    file = read_yaml(path, bytes_max=TABLE_BYTES_MAX, depth_max=_DEPTH_MAX, is_plain=True)
    file.mapping()
    return file.read_as(TableFile)


def is_table(content: object) -> bool:
    """Return whether the content of a file is a table alone, and no policy."""
    return isinstance(content, dict) and content.keys() <= {"version", "regions"} and "regions" in content


def table_named_in(path: Path, content: object) -> Path | None:
    """File that the content of another file names as its table; None where it names none."""
    named = content.get("regions") if isinstance(content, dict) else None
    return path.parent / named if isinstance(named, str) else None


def table_of(regions: dict[str, RegionEntry]) -> RegionTable:
    return RegionTable({RegionName(name): each.as_known() for name, each in regions.items()})


# Addresses of replicas


def announcement_fault(regions: RegionTable, home: Place, place: Place, url: str) -> str:
    """Reason why a gateway at `home` may not announce a replica at `place` with this URL; empty where the table lets
    it. A region without ranges refuses no URL here: see `RegionTable.lends`."""
    if fault := regions.place_fault(home) or regions.place_fault(place):
        return fault
    known = regions.regions[place.region]
    if home.region not in (place.region, *known.announced_by):
        return f"a gateway in region {home.region} may announce no replica in region {place.region}"
    host = host_in(url)
    if known.replicas and not any(_is_within(host, each) for each in known.replicas):
        return f"{host or 'its address'} is in none of the ranges of region {place.region}"
    return ""


def found_fault(regions: RegionTable, place: Place, url: str) -> str:
    """Reason why a URL from an outside directory is not used for a replica at `place`; empty where the table lets it.
    Host names in the table say nothing of addresses: where the region has no networks, only those of other regions are
    refused."""
    host = host_in(url)
    networks = {name: networks_of(regions, name) for name in regions.regions}
    own = networks.pop(place.region, [])
    if any(_is_within(host, each) for each in own):
        return ""
    if own:
        return f"{host or 'its address'} is in none of the ranges of region {place.region}"
    if any(_is_within(host, each) for found in networks.values() for each in found):
        return f"{host} is in a range of another region"
    return ""


def networks_of(regions: RegionTable, region: RegionName) -> list[str]:
    """Networks among a region's ranges; none where the region is not in the table."""
    known = regions.regions.get(region)
    return [] if known is None else [each for each in known.replicas if _looks_like_address(each)]


def network_fault(networks: Iterable[IPv4Network | IPv6Network], url: str) -> str:
    """Reason why a URL from an outside directory is not used where the region file limits them to networks; empty where
    it lies in one of these."""
    host = host_in(url)
    if any(_is_within(host, str(each)) for each in networks):
        return ""
    return f"{host or 'its address'} is in none of the networks of the region file"


def host_in(url: str) -> str:
    """Host of an engine's URL: an address in its usual spelling or a host name in small letters; empty for a URL that
    has neither or is ambiguous, and so lies in no range."""
    found = _URL.fullmatch(url)
    if found is None:
        return ""
    host = found[1].strip("[]").lower()
    try:
        return str(ip_address(host))
    except ValueError:
        name = host.removesuffix(".")
        return name if _HOST_NAME.fullmatch(name) else ""


@lru_cache(RANGES_MAX)
def _network(known: str) -> IPv4Network | IPv6Network:
    return ip_network(known)


def _is_within(host: str, known: str) -> bool:
    if not host:
        return False
    if _looks_like_address(known):
        try:
            return ip_address(host) in _network(known)
        except ValueError:
            return False
    return host == known or (known.startswith(".") and host.endswith(known))
