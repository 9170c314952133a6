"""Reads a region's residency policy file, and reports its faults by file and key.

It must never guess: a file that is missing, misspelt or contradicts itself gives no policy, and its region runs closed
(forwarding and accepting are both disabled).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
)
from pydantic_core import ErrorDetails

from gateway.core.kernel.regions import RegionTable, only, places_in
from gateway.core.kernel.residency import LoggingRule, ResidencyPolicy, TenantPolicy, closed_policy, within
from gateway.core.vocabulary import Jurisdiction, Place, PlaceRule, RegionName, TenantName
from mesh.descriptions import describe_keys
from mesh.environment import PROCESS_ENVIRONMENT
from mesh.faults import FileError, FileFault
from mesh.regions import Name, NamedRegions, RegionEntry, table_named_in, table_of
from mesh.values import FileContext
from mesh.yaml_file import YamlFile, read_yaml

POLICY_FILE_BYTES_MAX = 256 * 1024
DEPTH_MAX = 8
"""Deepest nesting of a file; the format itself needs five levels."""
NAMES_MAX = 256
"""Most names in one list."""
TENANTS_MAX = 4096
DIGEST_HEX_DIGITS = 16


class PolicyError(FileError):
    """Policy file that cannot be used. The message has one line; `faults` has every fault."""

    def __str__(self) -> str:
        more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
        return f"{self.path}: {self.faults[0]}{more}"


class PolicyContradiction(PolicyError):
    """Policy file that is well formed but contradicts itself."""


# Shape of the file, from which the JSON Schema is made.


def _refuse_repeats(names: tuple[str, ...]) -> tuple[str, ...]:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{', '.join(repeated)} stands here twice")
    return names


def _check_version(version: object) -> object:
    """Check the version; Literal[1] alone would accept `true` for 1."""
    if type(version) is not int or version != 1:
        raise ValueError("is not 1, the one version of the format that this program knows")
    return version


TenantText = Annotated[str, StringConstraints(strict=True, pattern=r"^[!-~]([ -~]{0,126}[!-~])?$")]
Names = Annotated[
    tuple[Name, ...],
    Field(max_length=NAMES_MAX, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_refuse_repeats),
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=describe_keys)


class PolicyPlaces(_Section):
    """A set of places. A region belongs to it when it or its jurisdiction is named, and the region is not denied."""

    jurisdictions: Names = ()
    """Every region that the table has in these jurisdictions."""
    regions: Names = ()
    """Regions named one by one, whatever their jurisdiction."""
    denied_regions: Names = ()
    """Regions that are never in the set, whatever else names them."""

    def rule(self, *, denied_as_well: Iterable[str] = ()) -> PlaceRule:
        return PlaceRule(
            frozenset(map(Jurisdiction, self.jurisdictions)),
            frozenset(map(RegionName, self.regions)),
            frozenset(map(RegionName, (*self.denied_regions, *denied_as_well))),
        )


class TenantSection(_Section):
    """Rules of one tenant that differ from the region's."""

    process: PolicyPlaces
    """Replaces the region's `process` for this tenant; the regions denied there stay denied. It may leave out the home
    region: then this tenant's requests are refused here (HTTP 421) before their content is read."""


class LoggingSection(_Section):
    """Details of a request that logs and audit records may show. The content of a request is never logged."""

    tenant: StrictBool = True
    client_address: StrictBool = False
    session_key: StrictBool = False


class PolicyDocument(_Section):
    """Residency policy of one region: where its requests may be processed, and which regions' requests it accepts."""

    version: Annotated[Literal[1], BeforeValidator(_check_version)]
    """Version of this format."""
    region: Name
    """Region whose gateways read this file."""
    jurisdiction: Name
    """Jurisdiction of the region, in the one spelling that all files share: EU, UK, US, IN."""
    process: PolicyPlaces
    """Places where requests that arrive in this region may be processed. It includes the region itself."""
    accept: PolicyPlaces
    """Regions whose overflow is accepted. Requests that arrive in this region itself need no mention."""
    tenants: Annotated[
        dict[TenantText, TenantSection],
        Field(max_length=TENANTS_MAX, json_schema_extra={"additionalProperties": False}),
    ] = {}
    """Tenants with a `process` of their own."""
    logging: LoggingSection = LoggingSection()
    """Details that may be logged."""
    regions: NamedRegions | None = None
    """The operators' table: every region that there is, and its jurisdiction. A region that is not in the table gets
    nothing, whatever other source names it; without a table, only this region is known."""

    @property
    def place(self) -> Place:
        return Place(RegionName(self.region), Jurisdiction(self.jurisdiction))

    @property
    def digest(self) -> str:
        """Digest of the content; comments, layout, order and spelled-out defaults do not change it."""
        content = self.model_dump(mode="json", exclude=None if self.regions else {"regions"})
        canonical = json.dumps(_canonical(content), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_HEX_DIGITS]

    @property
    def table(self) -> RegionTable | None:
        """Table of regions; None where the file has none."""
        return None if self.regions is None else table_of(self.regions)

    def policy(self) -> ResidencyPolicy:
        """Policy as written: its rules are not yet limited to the table."""
        return ResidencyPolicy(
            place=self.place,
            process=self.process.rule(),
            accept=self.accept.rule(),
            tenants={TenantName(name): self._tenant(section) for name, section in self.tenants.items()},
            logging=LoggingRule(self.logging.tenant, self.logging.client_address, self.logging.session_key),
            digest=self.digest,
            regions=self.table,
        )

    def _tenant(self, section: TenantSection) -> TenantPolicy:
        return TenantPolicy(section.process.rule(denied_as_well=self.process.denied_regions))


def _canonical(content: Any) -> Any:
    """Content with its lists sorted: all lists of the format are sets of names."""
    if isinstance(content, dict):
        return {key: _canonical(value) for key, value in content.items()}
    return sorted(content) if isinstance(content, list) else content


def policy_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a policy file, as published in `policies/residency.schema.json`."""
    schema = PolicyDocument.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Nightside residency policy of one region",
    }


# Load a policy from a file.


def load_policy(path: Path) -> ResidencyPolicy:
    """Load a policy and limit it to the operators' table of regions, or, without one, to its own region. Raises
    PolicyError, or PolicyContradiction where the file contradicts itself."""
    policy = _sound_policy(path)
    return within(policy, policy.regions or only(policy.place))


def load_narrowing(path: Path) -> ResidencyPolicy:
    """Load a policy that narrows the regions' own; without a table, it leaves theirs to decide which places exist.
    Raises as `load_policy` does."""
    policy = _sound_policy(path)
    return policy if policy.regions is None else replace(within(policy, policy.regions), regions=None)


def _sound_policy(path: Path) -> ResidencyPolicy:
    file, document = read_policy(path)
    policy = document.policy()
    if contradictions := file.located(contradictions_in(policy)):
        raise PolicyContradiction(path, contradictions)
    return policy


def load_policy_or_closed(path: Path, place: Place) -> tuple[ResidencyPolicy, str | None]:
    """Policy for a gateway at `place`; or the closed policy and the reason, which the caller must log."""
    try:
        policy = load_policy(path)
    except PolicyError as error:
        return closed_policy(place, str(error)), str(error)
    if policy.place != place:
        reason = f"{path}: is for {in_words(policy.place)}, and this gateway stands in {in_words(place)}"
        return closed_policy(place, reason), reason
    return policy, None


def table_file(path: Path) -> Path | None:
    """File that this policy names as its table of regions; None where it names none or cannot be read."""
    try:
        return table_named_in(path, _read_yaml(path).content)
    except FileError:
        return None


def read_policy(path: Path) -> tuple[YamlFile, PolicyDocument]:
    """File and its content, well formed but not yet checked for contradictions. Raises PolicyError."""
    try:
        file = _read_yaml(path)
        if file.content is None:
            raise FileError(path, [FileFault("", "is empty")])
        around = FileContext(path.parent, PROCESS_ENVIRONMENT)
        return file, file.read_as(PolicyDocument, context=around, words=_shape_words)
    except FileError as error:
        raise PolicyError(path, error.faults) from error


def _read_yaml(path: Path) -> YamlFile:
    return read_yaml(path, bytes_max=POLICY_FILE_BYTES_MAX, depth_max=DEPTH_MAX, is_plain=True)


def in_words(place: Place) -> str:
    return f"{place.region} ({place.jurisdiction})"


# Messages for faults of shape.

_SECTIONS = (PolicyDocument, PolicyPlaces, TenantSection, LoggingSection, RegionEntry)
_KEYS = sorted({name for section in _SECTIONS for name in section.model_fields})


_SHAPE_MESSAGES = {
    "string_type": "should be text; put it in quotes",
    "tuple_type": "should be a list, such as [EU, UK]",
    "dict_type": "should hold keys and values, or {} for none",
    "model_type": "should hold keys and values, or {} for none",
    "bool_type": "should be true or false",
}


def _shape_words(error: ErrorDetails) -> str | None:
    match error["type"]:
        case "extra_forbidden":
            return f"is not a known key{_suggestion(str(error['loc'][-1]))}"
        case "string_pattern_mismatch" if error["loc"][-1] == "[key]":
            return "a tenant's name is 1 to 128 printable ASCII characters, with no space at either end"
        case "string_pattern_mismatch":
            return f"{error['input']!r} should be 1 to 64 letters, digits, dots, dashes or underscores"
        case "too_long":
            return f"holds more than {error['ctx']['max_length']}"
        case kind:
            return _SHAPE_MESSAGES.get(kind)


def _suggestion(key: str) -> str:
    close = difflib.get_close_matches(key, _KEYS, n=1)
    return f"; is `{close[0]}` meant?" if close else ""


# Contradictions within one file.


def contradictions_in(policy: ResidencyPolicy) -> list[FileFault]:
    """Contradictions within one policy, in the order of the file."""
    return [
        *_empty_rules(policy),
        *_home_faults(policy),
        *_allowed_and_denied(policy),
        *_spelled_twice(policy),
        *_table_faults(policy),
    ]


def rules_of(policy: ResidencyPolicy) -> Iterator[tuple[str, PlaceRule]]:
    """Yield every rule of the policy with its key."""
    yield "process", policy.process
    yield "accept", policy.accept
    for name, tenant in policy.tenants.items():
        yield tenant_key(name), tenant.process


def tenant_key(name: TenantName) -> str:
    return f"tenants.{name}.process"


class NameKind(StrEnum):
    REGION = "region"
    JURISDICTION = "jurisdiction"
    TENANT = "tenant"


def names_of(policy: ResidencyPolicy) -> Iterator[tuple[NameKind, str, str]]:
    """Yield every name that the policy uses: its kind, the name, and its key."""
    yield NameKind.REGION, policy.place.region, "region"
    yield NameKind.JURISDICTION, policy.place.jurisdiction, "jurisdiction"
    for key, rule in rules_of(policy):
        for jurisdiction in sorted(rule.jurisdictions):
            yield NameKind.JURISDICTION, jurisdiction, f"{key}.jurisdictions"
        for region in sorted(rule.regions):
            yield NameKind.REGION, region, f"{key}.regions"
        inherited = policy.process.denied_regions if key.startswith("tenants.") else frozenset()
        for region in sorted(rule.denied_regions - inherited):
            yield NameKind.REGION, region, f"{key}.denied_regions"
    for tenant in policy.tenants:
        yield NameKind.TENANT, tenant, f"tenants.{tenant}"
    if policy.regions is not None:
        for place in places_in(policy.regions):
            yield NameKind.REGION, place.region, f"regions.{place.region}"
            yield NameKind.JURISDICTION, place.jurisdiction, f"regions.{place.region}"


_SAME_JURISDICTION = {"gb": "uk", "usa": "us"}


def folded(kind: NameKind, name: str) -> str:
    """Form of a name that is equal for two spellings of it. Requests are decided by exact names, so a second spelling
    would silently be another place or another tenant."""
    match kind:
        case NameKind.REGION | NameKind.TENANT:
            return name.casefold()
        case NameKind.JURISDICTION:
            plain = re.sub(r"[._-]", "", name.casefold())
            return _SAME_JURISDICTION.get(plain, plain)


def _empty_rules(policy: ResidencyPolicy) -> Iterator[FileFault]:
    for key, rule in rules_of(policy):
        if key != "accept" and not rule.jurisdictions and not rule.regions:
            yield FileFault(key, "allows nowhere: it names neither a jurisdiction nor a region")


def _home_faults(policy: ResidencyPolicy) -> Iterator[FileFault]:
    home, rule = policy.place, policy.process
    if (rule.jurisdictions or rule.regions) and not rule.allows(home):
        yield FileFault("process", f"leaves out the region itself, {in_words(home)}; only a tenant's rule may do that")
    if home.region in policy.accept.denied_regions:
        yield FileFault("accept.denied_regions", f"denies the region itself, {in_words(home)}")


def _table_faults(policy: ResidencyPolicy) -> Iterator[FileFault]:
    if policy.regions is not None and (fault := policy.regions.place_fault(policy.place)):
        yield FileFault("regions", f"this file is for {in_words(policy.place)}, and {fault}")


def _allowed_and_denied(policy: ResidencyPolicy) -> Iterator[FileFault]:
    for key, rule in rules_of(policy):
        for region in sorted(rule.regions & rule.denied_regions):
            yield FileFault(f"{key}.regions", f"{region} is both allowed and denied")


def _spelled_twice(policy: ResidencyPolicy) -> Iterator[FileFault]:
    first_spelling: dict[tuple[NameKind, str], str] = {}
    for kind, name, key in names_of(policy):
        first = first_spelling.setdefault((kind, folded(kind, name)), name)
        if name != first:
            yield FileFault(key, f"{kind} {name} is written {first} elsewhere in this file")
