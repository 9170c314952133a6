"""Reads a region's residency policy file and says, by file and key, what is wrong with it.

It must never guess: a file that is missing, misspelt or at odds with itself gives no policy, and its region runs closed
(nothing leaves, nothing is taken in).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    ValidationError,
)
from pydantic_core import ErrorDetails

from gateway.core.residency import LoggingRule, ResidencyPolicy, TenantPolicy, closed_policy
from gateway.core.vocabulary import Jurisdiction, Place, PlaceRule, RegionName, TenantName

POLICY_FILE_BYTES_MAX = 256 * 1024
DEPTH_MAX = 8
"""Nesting of a file; the format itself needs five."""
NAMES_MAX = 256
"""Names in one list."""
TENANTS_MAX = 4096
DIGEST_HEX_DIGITS = 16


class PolicyError(Exception):
    """A policy file that cannot be used: which file, which key in it (empty for the file as a whole), and why."""

    def __init__(self, path: Path, key: str, message: str, further: tuple[PolicyError, ...] = ()) -> None:
        super().__init__(path, key, message, further)
        self.path = path
        self.key = key
        self.message = message
        self.further = further
        """Other faults found in the same reading."""

    def __str__(self) -> str:
        where = f"{self.path}: {self.key}" if self.key else str(self.path)
        more = f" (and {len(self.further)} more)" if self.further else ""
        return f"{where}: {self.message}{more}"


class PolicyContradiction(PolicyError):
    """A file that is well formed and yet cannot be meant: it says two things that exclude each other."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file, and the key where it is."""

    key: str
    message: str


# The file's shape, which is also the published JSON Schema.


def _refuse_repeats(names: tuple[str, ...]) -> tuple[str, ...]:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{', '.join(repeated)} stands here twice")
    return names


def _check_version(version: object) -> object:
    """Literal[1] alone would take `true` for 1."""
    if version is True or version != 1:
        raise ValueError("is not 1, the one version of the format that this program knows")
    return version


Name = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
TenantText = Annotated[str, StringConstraints(strict=True, pattern=r"^[!-~]([ -~]{0,126}[!-~])?$")]
Names = Annotated[
    tuple[Name, ...],
    Field(max_length=NAMES_MAX, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_refuse_repeats),
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Places(_Section):
    """A set of places. A region belongs to it when it or its jurisdiction is named, and the region is not denied."""

    jurisdictions: Names = ()
    """Every region in these jurisdictions, also one that joins the mesh later."""
    regions: Names = ()
    """These regions, whatever their jurisdiction."""
    denied_regions: Names = ()
    """Never these regions, whatever else names them."""

    def rule(self, *, denied_as_well: Iterable[str] = ()) -> PlaceRule:
        return PlaceRule(
            frozenset(map(Jurisdiction, self.jurisdictions)),
            frozenset(map(RegionName, self.regions)),
            frozenset(map(RegionName, (*self.denied_regions, *denied_as_well))),
        )


class TenantSection(_Section):
    """What differs for one tenant."""

    process: Places
    """Replaces the region's `process` for this tenant; the regions denied there stay denied. It may leave out the home
    region: then this tenant's requests are refused here (HTTP 421) before their content is read."""


class LoggingSection(_Section):
    """Which details of a request logs and audit records may show. The content of a request is never logged."""

    tenant: StrictBool = True
    client_address: StrictBool = False
    session_key: StrictBool = False


class PolicyDocument(_Section):
    """Where one region's requests may be processed, and whose requests it takes in."""

    version: Annotated[Literal[1], BeforeValidator(_check_version)]
    """Version of this format."""
    region: Name
    """The region whose gateways read this file."""
    jurisdiction: Name
    """Whose law holds there, in the one spelling that all files share: EU, UK, US, IN."""
    process: Places
    """Where requests that arrive in this region may be processed. It includes the region itself."""
    accept: Places
    """Regions whose overflow is taken in. Requests that arrive in this region itself need no mention."""
    tenants: Annotated[
        dict[TenantText, TenantSection],
        Field(max_length=TENANTS_MAX, json_schema_extra={"additionalProperties": False}),
    ] = {}
    """Tenants for whom `process` differs."""
    logging: LoggingSection = LoggingSection()
    """What may be logged."""

    @property
    def place(self) -> Place:
        return Place(RegionName(self.region), Jurisdiction(self.jurisdiction))

    @property
    def digest(self) -> str:
        """Names the content: comments, layout, order and defaults written out change nothing."""
        canonical = json.dumps(_canonical(self.model_dump(mode="json")), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:DIGEST_HEX_DIGITS]

    def policy(self) -> ResidencyPolicy:
        return ResidencyPolicy(
            place=self.place,
            process=self.process.rule(),
            accept=self.accept.rule(),
            tenants={TenantName(name): self._tenant(section) for name, section in self.tenants.items()},
            logging=LoggingRule(self.logging.tenant, self.logging.client_address, self.logging.session_key),
            digest=self.digest,
        )

    def _tenant(self, section: TenantSection) -> TenantPolicy:
        return TenantPolicy(section.process.rule(denied_as_well=self.process.denied_regions))


def _canonical(content: Any) -> Any:
    """All lists of the format are sets of names."""
    if isinstance(content, dict):
        return {key: _canonical(value) for key, value in content.items()}
    return sorted(content) if isinstance(content, list) else content


def policy_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a policy file, as published in `policies/residency.schema.json`."""
    schema = PolicyDocument.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Nightside residency policy of one region",
    }


# From a file to a policy.


def load_policy(path: Path) -> ResidencyPolicy:
    """The policy in this file. Raises PolicyError, or PolicyContradiction where the file is at odds with itself."""
    policy = read_policy(path).policy()
    contradictions = contradictions_in(policy)
    if contradictions:
        raise _error(PolicyContradiction, path, contradictions)
    return policy


def load_policy_or_closed(path: Path, place: Place) -> tuple[ResidencyPolicy, str | None]:
    """The policy for a gateway at `place`, or the closed one and the reason, to be told loudly."""
    try:
        policy = load_policy(path)
    except PolicyError as error:
        return closed_policy(place, str(error)), str(error)
    if policy.place != place:
        reason = f"{path}: is for {in_words(policy.place)}, and this gateway stands in {in_words(place)}"
        return closed_policy(place, reason), reason
    return policy, None


def read_policy(path: Path) -> PolicyDocument:
    """The file's content, well formed but not yet held against itself. Raises PolicyError."""
    content = _parse(path, _read_text(path))
    if content is None:
        raise PolicyError(path, "", "is empty")
    try:
        return PolicyDocument.model_validate(content)
    except ValidationError as error:
        faults = [_shape_fault(each) for each in error.errors(include_url=False)]
        raise _error(PolicyError, path, faults) from None


def in_words(place: Place) -> str:
    return f"{place.region} ({place.jurisdiction})"


def _error(kind: type[PolicyError], path: Path, faults: list[Fault]) -> PolicyError:
    first, *rest = faults
    return kind(path, first.key, first.message, tuple(kind(path, fault.key, fault.message) for fault in rest))


def _read_text(path: Path) -> str:
    try:
        content = _read_bytes(path)
        return content.decode("utf-8")
    except OSError as error:
        raise PolicyError(path, "", f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise PolicyError(path, "", f"is not UTF-8 text (byte {error.start})") from error


def _read_bytes(path: Path) -> bytes:
    """A pipe or a device is refused unopened: reading one could wait for ever."""
    if path.exists() and not path.is_file():
        raise PolicyError(path, "", "is not a file")
    with path.open("rb") as file:
        content = file.read(POLICY_FILE_BYTES_MAX + 1)
    if len(content) > POLICY_FILE_BYTES_MAX:
        raise PolicyError(path, "", f"is larger than {POLICY_FILE_BYTES_MAX // 1024} KiB")
    return content


# YAML without its traps: `NO` is Norway and not false, a key stands once, and nothing refers to something elsewhere.


class _PolicyLoader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        problem = self._problem(event)
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def _problem(self, event: yaml.AliasEvent | yaml.ScalarEvent | yaml.CollectionStartEvent) -> str:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            return "anchors and aliases (& and *) are not allowed: each rule is written out where it holds"
        if event.tag is not None:
            return f"the tag {event.tag} is not allowed"
        return "nested too deeply" if self.depth >= DEPTH_MAX else ""


_PolicyLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"0|[1-9][0-9]{0,17}", list("0123456789")),
):
    _PolicyLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


class _FaultFound(Exception):
    def __init__(self, key: str, message: str) -> None:
        super().__init__(key, message)
        self.fault = Fault(key, message)


def _parse(path: Path, text: str) -> object:
    try:
        node = _compose(text)
        return None if node is None else _value(node, "")
    except yaml.MarkedYAMLError as error:
        raise PolicyError(path, "", _yaml_fault(error)) from error
    except yaml.YAMLError as error:
        raise PolicyError(path, "", f"is not YAML: {error}") from error
    except _FaultFound as found:
        raise _error(PolicyError, path, [found.fault]) from None


def _compose(text: str) -> yaml.Node | None:
    loader = _PolicyLoader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _yaml_fault(error: yaml.MarkedYAMLError) -> str:
    line = f"line {error.problem_mark.line + 1}" if error.problem_mark is not None else None
    return ": ".join(part for part in (line, error.context, error.problem) if part)


def _value(node: yaml.Node, key: str) -> object:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, key)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, f"{key}[{index}]") for index, item in enumerate(node.value)]
    return _scalar(node)


def _mapping(node: yaml.MappingNode, key: str) -> dict[str, object]:
    mapping: dict[str, object] = {}
    for name_node, value_node in node.value:
        name = _key_name(name_node, key)
        if name in mapping:
            raise _FaultFound(_joined(key, name), f"is written twice, again in line {_line_number(name_node)}")
        mapping[name] = _value(value_node, _joined(key, name))
    return mapping


def _key_name(node: yaml.Node, key: str) -> str:
    name = _scalar(node) if isinstance(node, yaml.ScalarNode) else None
    if not isinstance(name, str):
        raise _FaultFound(key, f"the key in line {_line_number(node)} is not text; put it in quotes")
    return name


def _scalar(node: yaml.Node) -> str | int | bool | None:
    text = str(node.value)
    match node.tag.rpartition(":")[2]:
        case "null":
            return None
        case "bool":
            return text == "true"
        case "int":
            return int(text)
        case _:
            return text


def _line_number(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _joined(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


# Faults of shape, in plain words.

_KEYS = sorted(
    {name for section in (PolicyDocument, Places, TenantSection, LoggingSection) for name in section.model_fields}
)


def _shape_fault(error: ErrorDetails) -> Fault:
    return Fault(_key_path(error["loc"]), _shape_message(error))


def _key_path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if part != "[key]":
            path = f"{path}[{part}]" if isinstance(part, int) else _joined(path, part)
    return path


_SHAPE_MESSAGES = {
    "missing": "is missing",
    "string_type": "should be text; put it in quotes",
    "tuple_type": "should be a list, such as [EU, UK]",
    "dict_type": "should hold keys and values, or {} for none",
    "model_type": "should hold keys and values, or {} for none",
    "bool_type": "should be true or false",
}


def _shape_message(error: ErrorDetails) -> str:
    match error["type"]:
        case "extra_forbidden":
            return f"is not a known key{_suggestion(str(error['loc'][-1]))}"
        case "string_pattern_mismatch" if error["loc"][-1] == "[key]":
            return "a tenant's name is 1 to 128 printable ASCII characters, with no space at either end"
        case "string_pattern_mismatch":
            return f"{error['input']!r} should be 1 to 64 letters, digits, dots, dashes or underscores"
        case "too_long":
            return f"holds more than {error['ctx']['max_length']}"
        case "value_error":
            return str(error["ctx"]["error"])
        case kind:
            return _SHAPE_MESSAGES.get(kind, error["msg"])


def _suggestion(key: str) -> str:
    close = difflib.get_close_matches(key, _KEYS, n=1)
    return f"; is `{close[0]}` meant?" if close else ""


# What a file says and takes back.


def contradictions_in(policy: ResidencyPolicy) -> list[Fault]:
    """Where one policy is at odds with itself, in the order of the file."""
    return [
        *_empty_rules(policy),
        *_home_faults(policy),
        *_allowed_and_denied(policy),
        *_spelled_twice(policy),
    ]


def rules_of(policy: ResidencyPolicy) -> Iterator[tuple[str, PlaceRule]]:
    """Every rule of the policy with its key."""
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
    """Every name that the policy uses: its kind, the name, and the key where it stands."""
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


_SAME_JURISDICTION = {"gb": "uk", "usa": "us"}


def folded(kind: NameKind, name: str) -> str:
    """Equal for two spellings of one name. Names are compared letter by letter when a request is decided, so a second
    spelling would be another place or another tenant, and nobody would notice."""
    match kind:
        case NameKind.REGION | NameKind.TENANT:
            return name.casefold()
        case NameKind.JURISDICTION:
            plain = re.sub(r"[._-]", "", name.casefold())
            return _SAME_JURISDICTION.get(plain, plain)


def _empty_rules(policy: ResidencyPolicy) -> Iterator[Fault]:
    for key, rule in rules_of(policy):
        if key != "accept" and not rule.jurisdictions and not rule.regions:
            yield Fault(key, "allows nowhere: it names neither a jurisdiction nor a region")


def _home_faults(policy: ResidencyPolicy) -> Iterator[Fault]:
    home, rule = policy.place, policy.process
    if (rule.jurisdictions or rule.regions) and not rule.allows(home):
        yield Fault("process", f"leaves out the region itself, {in_words(home)}; only a tenant's rule may do that")
    if home.region in policy.accept.denied_regions:
        yield Fault("accept.denied_regions", f"denies the region itself, {in_words(home)}")


def _allowed_and_denied(policy: ResidencyPolicy) -> Iterator[Fault]:
    for key, rule in rules_of(policy):
        for region in sorted(rule.regions & rule.denied_regions):
            yield Fault(f"{key}.regions", f"{region} is both allowed and denied")


def _spelled_twice(policy: ResidencyPolicy) -> Iterator[Fault]:
    first_spelling: dict[tuple[NameKind, str], str] = {}
    for kind, name, key in names_of(policy):
        first = first_spelling.setdefault((kind, folded(kind, name)), name)
        if name != first:
            yield Fault(key, f"{kind} {name} is written {first} elsewhere in this file")
