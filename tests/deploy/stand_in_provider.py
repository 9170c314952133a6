"""A stand-in for a Terraform provider: it serves the real one's schema, so that Terraform itself can check, plan, apply
and test modules without a cloud.

It creates nothing, knows none of the provider's own rules, and its values are made up. Terraform starts it:
`python stand_in_provider.py SCHEMA.json.gz`. It needs the packages of .venv-deploy.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import tf.provider
import tf.runner
from tf.gen import tfplugin_pb2 as pb
from tf.gen import tfplugin_pb2_grpc as rpc

SCHEMA: dict[str, Any] = json.loads(gzip.decompress(Path(sys.argv[1]).read_bytes()))
_NESTED_BLOCK = {
    "list": pb.Schema.NestedBlock.LIST,
    "set": pb.Schema.NestedBlock.SET,
    "map": pb.Schema.NestedBlock.MAP,
    "single": pb.Schema.NestedBlock.SINGLE,
}
_NESTED_OBJECT = {"list": pb.Schema.Object.LIST, "set": pb.Schema.Object.SET, "map": pb.Schema.Object.MAP}
_UNKNOWN = msgpack.ExtType(0, b"\0")
_Fill = Callable[[dict[str, Any], str, str], Any]
"""Value of an attribute, computed from the attribute, its name and its path."""


def _type_of(attribute: dict[str, Any]) -> Any:
    """Type of an attribute in Terraform's JSON notation."""
    if "nested" not in attribute:
        return attribute["type"]
    nesting, block = attribute["nested"]["nesting"], attribute["nested"]["block"]
    inner = {name: _type_of(each) for name, each in block["attributes"].items()}
    inner |= {
        name: ["list", _type_of({"nested": {"nesting": "single", "block": each["block"]}})]
        for name, each in block["blocks"].items()
    }
    return ["object", inner] if nesting == "single" else [nesting, ["object", inner]]


def _known(what: Any) -> Any:
    """Type without `dynamic`, which Terraform does not accept within a set."""
    if what == "dynamic":
        return "string"
    if isinstance(what, list):
        return [what[0], *map(_known, what[1:])]
    return {name: _known(each) for name, each in what.items()} if isinstance(what, dict) else what


def _message(block: dict[str, Any], *, in_set: bool = False) -> Any:
    out = pb.Schema.Block(version=0)
    for name, said in sorted(block["attributes"].items()):
        is_required = said.get("required", False)
        is_computed = said.get("computed", False) and not is_required
        is_optional = not is_required and (said.get("optional", False) or not is_computed)
        made = pb.Schema.Attribute(name=name, required=is_required, computed=is_computed, optional=is_optional)
        if "nested" in said and (said.get("optional") or said.get("required")):
            nesting = said["nested"]["nesting"]
            made.nested_type.nesting = _NESTED_OBJECT.get(nesting, pb.Schema.Object.SINGLE)
            made.nested_type.attributes.extend(
                _message(said["nested"]["block"], in_set=in_set or nesting == "set").attributes
            )
        else:
            made.type = json.dumps(_known(_type_of(said)) if in_set else _type_of(said)).encode()
        out.attributes.append(made)
    for name, said in sorted(block["blocks"].items()):
        inner = _message(said["block"], in_set=in_set or said["nesting"] == "set")
        nested = pb.Schema.NestedBlock(type_name=name, nesting=_NESTED_BLOCK[said["nesting"]], block=inner)
        if said["nesting"] in {"list", "set"}:
            nested.min_items, nested.max_items = said["min"], said["max"]
        out.block_types.append(nested)
    return out


_FORMS = {
    "region": "eu-west-1",
    "zone_id": "Z{digits}",
    **dict.fromkeys(("address", "ip_address", "public_ip"), "203.0.113.{byte}"),
}
"""Forms of the values that end up in files which the product's programs read and validate."""


def _made_up(attribute: dict[str, Any], name: str, where: str) -> Any:
    what, digest = _type_of(attribute), hashlib.sha256(where.encode())
    if what == "string":
        digits = digest.hexdigest()[:8].upper()
        return _FORMS.get(name, f"stub-{name}-{{digits}}").format(digits=digits, byte=digest.digest()[0])
    if not isinstance(what, list):
        return {"number": 0, "bool": False}.get(what)
    return {"map": {}, "object": None}.get(what[0], [])


def _filled(block: dict[str, Any], state: Any, fill: _Fill, where: str) -> Any:
    """Give each computed attribute without a value one."""
    if not isinstance(state, dict):
        return state
    for name, said in block["attributes"].items():
        if said.get("computed") and (state.get(name) is None or isinstance(state.get(name), msgpack.ExtType)):
            state[name] = fill(said, name, f"{where}.{name}")
    for name, said in block["blocks"].items():
        inner = state.get(name)
        if isinstance(inner, list):
            state[name] = [_filled(said["block"], each, fill, f"{where}.{name}{at}") for at, each in enumerate(inner)]
        elif said["nesting"] == "single":
            _filled(said["block"], inner, fill, f"{where}.{name}")
    return state


def _packed(state: Any) -> Any:
    return pb.DynamicValue(msgpack=msgpack.packb(state, use_bin_type=True))


def _unpacked(said: Any) -> Any:
    if said.json:
        return json.loads(said.json)
    return (
        msgpack.unpackb(said.msgpack, raw=False, strict_map_key=False, ext_hook=msgpack.ExtType)
        if said.msgpack
        else None
    )


class Servicer(rpc.ProviderServicer):  # type: ignore[misc]  # the package has no types
    """Provider service; its methods are named as in Terraform's plug-in protocol, version 6."""

    def __init__(self, provider: object) -> None:
        pass

    def GetMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        kinds = pb.GetMetadata
        return kinds.Response(
            resources=[kinds.ResourceMetadata(type_name=each) for each in SCHEMA["resource"]],
            data_sources=[kinds.DataSourceMetadata(type_name=each) for each in SCHEMA["data"]],
            server_capabilities=pb.ServerCapabilities(get_provider_schema_optional=False),
        )

    def GetProviderSchema(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = pb.GetProviderSchema.Response(provider=pb.Schema(version=0, block=_message(SCHEMA["provider"])))
        for name, block in SCHEMA["resource"].items():
            answer.resource_schemas[name].CopyFrom(pb.Schema(version=0, block=_message(block)))
        for name, block in SCHEMA["data"].items():
            answer.data_source_schemas[name].CopyFrom(pb.Schema(version=0, block=_message(block)))
        return answer

    def ValidateProviderConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ValidateProviderConfig.Response()

    def ValidateResourceConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ValidateResourceConfig.Response()

    def ValidateDataResourceConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ValidateDataResourceConfig.Response()

    def ConfigureProvider(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ConfigureProvider.Response()

    def StopProvider(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.StopProvider.Response()

    def UpgradeResourceState(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.UpgradeResourceState.Response(upgraded_state=pb.DynamicValue(json=request.raw_state.json))

    def ReadResource(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.ReadResource.Response(new_state=request.current_state)

    def PlanResourceChange(self, request: Any, context: Any) -> Any:  # noqa: N802
        wanted, prior = _unpacked(request.proposed_new_state), _unpacked(request.prior_state)
        if wanted is None:
            return pb.PlanResourceChange.Response(planned_state=request.proposed_new_state)
        if prior is None:
            block = SCHEMA["resource"][request.type_name]
            wanted = _filled(block, wanted, lambda _said, _name, _where: _UNKNOWN, request.type_name)
        return pb.PlanResourceChange.Response(planned_state=_packed(wanted))

    def ApplyResourceChange(self, request: Any, context: Any) -> Any:  # noqa: N802
        state = _unpacked(request.planned_state)
        if state is not None:
            where = request.type_name + hashlib.sha256(request.config.msgpack).hexdigest()
            state = _filled(SCHEMA["resource"][request.type_name], state, _made_up, where)
        return pb.ApplyResourceChange.Response(new_state=_packed(state))

    def ReadDataSource(self, request: Any, context: Any) -> Any:  # noqa: N802
        state = _filled(SCHEMA["data"][request.type_name], _unpacked(request.config), _made_up, request.type_name)
        return pb.ReadDataSource.Response(state=_packed(state))

    def GetFunctions(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.GetFunctions.Response()


class _Named:
    def full_name(self) -> str:
        return str(SCHEMA["source"])


if __name__ == "__main__":
    tf.provider.ProviderServicer = Servicer
    tf.runner.run_provider(_Named(), [sys.argv[0]])
