"""The description of the API holds for a real gateway: allowed requests are answered as described, and never by
a 500.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.door.errors_page import every_kind
from gateway.request.bodies import RESERVED_FIELDS, read_body
from gateway.request.engine_api import CHAT_PATH, POSTED_PATHS
from loadgen.engine.fields import ApiError
from loadgen.engine.pooling import parse_embeddings, parse_rerank
from loadgen.engine.tokenizer import tokenize
from tests.support.core import MODEL
from tests.support.served import in_thread, served

ROOT = Path(__file__).parents[2]
DESCRIPTION = ROOT / "docs/reference/openapi.yaml"
DOCUMENT = yaml.load(DESCRIPTION.read_text(), yaml.CSafeLoader)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
METHODS = ("get", "post", "delete")
OPERATIONS = [(method, path) for path, item in DOCUMENT["paths"].items() for method in METHODS if method in item]
EXAMPLES = 10
NEEDED = {"messages", "prompt", "input", "max_tokens", "query", "documents", "text_1", "text_2"}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
"""Checks of answers only: engines decide which requests are valid, so that no check expects a refusal."""
GENERATING = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Asked:
    """Counts of status classes, so that a run in which no request succeeded does not pass."""

    statuses: list[int]


def good_body(body: dict[str, Any]) -> dict[str, Any]:
    """The same body without members that an engine is likely to refuse."""
    needed = {name: value for name, value in body.items() if name in NEEDED}
    return {**needed, "model": MODEL, **({"max_tokens": 5} if "max_tokens" in needed else {})}


def repeated_keys(node: yaml.Node | None) -> Iterator[str]:
    """Keys that a mapping has twice, with their lines."""
    if isinstance(node, yaml.MappingNode):
        seen = Counter(key.value for key, _ in node.value)
        yield from (f"{key.value}, line {key.start_mark.line + 1}" for key, _ in node.value if seen[key.value] > 1)
    for child in node.value if isinstance(node, yaml.CollectionNode) else ():
        for each in child if isinstance(child, tuple) else (child,):
            yield from repeated_keys(each)


def try_out(method: str, path: str, url: str, asked: Asked) -> None:
    operation = SCHEMA[path][method]

    @GENERATING
    @given(case=operation.as_strategy(), is_good=st.booleans())
    def attempt(case: schemathesis.Case[Any], is_good: bool) -> None:
        if is_good and isinstance(case.body, dict):
            case.body = good_body(case.body)
        response = case.call(base_url=url)
        case.validate_response(response, checks=CHECKS)
        asked.statuses.append(response.status_code)

    attempt()


async def test_every_operation_answers_as_described(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> None:
    asked: dict[tuple[str, str], Asked] = {}
    async with served(tmp_path, unused_tcp_port_factory) as up:
        for method, path in OPERATIONS:
            told = asked[method, path] = Asked([])
            await in_thread(lambda method=method, path=path, told=told: try_out(method, path, up.url, told))  # type: ignore[misc]
        await up.runs(0)
    assert all(told.statuses for told in asked.values())
    assert all(status < 500 for told in asked.values() for status in told.statuses)
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/rerank", "/v1/models", "/health"):
        assert 200 in asked["get" if path in ("/v1/models", "/health") else "post", path].statuses, path


class TestTheDocument:
    def test_it_is_served_as_it_is_written(self) -> None:
        assert DESCRIPTION.resolve() == ROOT / "gateway/door/openapi.yaml"

    async def test_clients_may_read_it(self, tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> None:
        async with served(tmp_path, unused_tcp_port_factory) as up, aiohttp.ClientSession() as session:
            async with session.get(f"{up.url}/openapi.yaml") as response:
                assert (response.status, await response.read()) == (200, DESCRIPTION.read_bytes())
                assert response.content_type == "application/yaml"

    def test_it_names_every_call_of_an_engine(self) -> None:
        assert {path for method, path in OPERATIONS if method == "post" and "{" not in path} == {
            *POSTED_PATHS,
            "/v1/files",
            "/v1/batches",
            "/v1/uploads",
            "/v1/messages/batches",
        }

    def test_it_names_every_code_of_an_error(self) -> None:
        assert set(DOCUMENT["components"]["schemas"]["Code"]["enum"]) == {kind.code for kind in every_kind()}

    def test_it_names_every_field_that_is_refused(self) -> None:
        named = set(re.findall(r"`(\w+)`", DOCUMENT["info"]["description"].split("refused here")[1]))
        assert named == {*RESERVED_FIELDS, "unsupported_parameter", "vllm_xargs", "priority"}

    def test_no_mapping_has_a_key_twice(self) -> None:
        """A parser keeps the last one or refuses the document, as it likes."""
        assert list(repeated_keys(yaml.compose(DESCRIPTION.read_text(), yaml.CSafeLoader))) == []

    def test_it_promises_no_name_of_a_model_that_is_refused(self) -> None:
        schema = Draft202012Validator(DOCUMENT["components"]["schemas"]["ModelName"])
        names = [
            "Qwen/Qwen3-8B",
            "a b",
            "Qwen/Qwen3-8B\n",
            "\n",
            *map(chr, range(0x250)),
            "\u2028",
            "\ue000",
            "\U000e0001",
            "",
            "m" * 256,
            "m" * 257,
        ]
        promised = [name for name in names if schema.is_valid(name)]
        assert {"Qwen/Qwen3-8B", "a b", "m" * 256} <= set(promised)
        for name in promised:
            body = msgspec.json.encode({"model": name, "messages": []})
            assert read_body(CHAT_PATH, body, passes_priority=False).model == name

    def test_a_form_has_each_field_once(self) -> None:
        """The gateway refuses a form that has a field twice, and a field with several values is sent as several."""
        content = DOCUMENT["paths"]["/v1/files"]["post"]["requestBody"]["content"]
        schema = Draft202012Validator(content["multipart/form-data"]["schema"])
        form = {"file": "{}", "purpose": "batch", "expires_after[anchor]": "created_at"}
        assert schema.is_valid(form)
        assert not schema.is_valid({**form, "metadata": ["a", "b"]})

    @pytest.mark.parametrize(
        ("name", "value", "is_promised"),
        [
            ("expires_after[seconds]", 3600, True),
            ("expires_after[seconds]", 3599, False),
            ("expires_after[seconds]", 30 * 24 * 3600 + 1, False),
            ("expires_after[anchor]", "now", False),
            ("metadata", "€" * 1024, True),
            ("metadata", "m" * 4097, False),
        ],
    )
    def test_a_forms_fields_have_the_gateways_limits(self, name: str, value: object, is_promised: bool) -> None:
        content = DOCUMENT["paths"]["/v1/files"]["post"]["requestBody"]["content"]
        schema = Draft202012Validator(content["multipart/form-data"]["schema"])
        assert schema.is_valid({"file": "{}", "purpose": "batch", name: value}) == is_promised

    @pytest.mark.parametrize(
        ("name", "body", "parse"),
        [
            ("RerankRequest", {"query": "a", "documents": []}, parse_rerank),
            ("EmbeddingsRequest", {"input": ""}, parse_embeddings),
            ("EmbeddingsRequest", {"input": []}, parse_embeddings),
            ("TokenizeRequest", {}, lambda kind, body, served: tokenize(kind, body, served, 100)),
        ],
    )
    def test_it_promises_no_empty_body_that_an_emulated_engine_refuses(
        self, name: str, body: dict[str, Any], parse: Callable[[str, bytes, tuple[str, ...]], object]
    ) -> None:
        resolved = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
        schema = Draft202012Validator(resolved)
        empty = {"model": MODEL, **body}
        with pytest.raises(ApiError):
            parse("application/json", msgspec.json.encode(empty), (MODEL,))
        assert not schema.is_valid(empty)
        texts = {key: ["a"] if isinstance(value, list) else "a" for key, value in body.items()} or {"prompt": "a"}
        full = {"model": MODEL, **texts}
        parse("application/json", msgspec.json.encode(full), (MODEL,))
        assert schema.is_valid(full)

    def test_a_prompt_to_tokenize_has_the_names_that_a_gateway_reads(self) -> None:
        properties = DOCUMENT["components"]["schemas"]["TokenizeRequest"]["properties"]
        assert set(properties) == {"model", "prompt", "content", "messages"}

    def test_its_schemas_are_schemas(self) -> None:
        for schema in DOCUMENT["components"]["schemas"].values():
            Draft202012Validator.check_schema(schema)
