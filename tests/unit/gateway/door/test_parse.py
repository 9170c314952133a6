from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from gateway.core.config import CoreConfig
from gateway.core.features.classes.config import BestEffortConfig, ClassesConfig
from gateway.core.placement.prefix_chain import prefix_chain, prefix_salt
from gateway.core.response_key import response_key
from gateway.core.tenant_config import TenantConfig
from gateway.core.vocabulary import (
    NO_HINTS,
    GatewayId,
    Hints,
    ModelName,
    RequestId,
    RequestProfile,
    ServiceClass,
    TenantName,
)
from gateway.door import errors
from gateway.door.errors import ClientFault
from gateway.door.parse import (
    choose_request_id,
    control_profile,
    engine_headers,
    read_caller,
    read_request,
)
from gateway.door.settings import HttpSettings
from gateway.http1.server import Headers
from gateway.request.callers import ClientKey, KeyId
from gateway.request.engine_api import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    COUNT_TOKENS_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
)
from gateway.request.promises import NO_PROMISES, Promises
from tests.support.core import US

SETTINGS = HttpSettings(GatewayId("us-1"), US, prefix_block_bytes=16, prefix_blocks_max=8)
R1 = RequestId("r1")
DEEP = b'{"model":"a","messages":' + b"[" * 100_000
MESSAGES = [{"role": "user", "content": "Say something about the import system, and then a little more."}]


def read(body: object, *, path: str = CHAT_PATH, **headers: str) -> RequestProfile:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lowered = {name.replace("_", "-"): value for name, value in headers.items()}
    return read_request(path, raw, read_caller(lowered, R1, SETTINGS), SETTINGS).profile


def chat(**fields: object) -> dict[str, object]:
    return {"model": "llama", "messages": MESSAGES, **fields}


def fault(body: object, *, path: str = CHAT_PATH) -> ClientFault:
    with pytest.raises(ClientFault) as caught:
        read(body, path=path)
    return caught.value


class TestProfile:
    def test_a_chat_is_read(self) -> None:
        profile = read(chat(stream=True, max_tokens=5))
        assert (profile.request_id, profile.model, profile.tenant) == ("r1", "llama", "default")
        assert (profile.stream, profile.output_tokens_max) == (True, 5)

    def test_the_newer_name_of_the_limit_wins(self) -> None:
        assert read(chat(max_tokens=5, max_completion_tokens=7)).output_tokens_max == 7

    @pytest.mark.parametrize("prompt", ["a text", ["several", "texts"], [1, 2, 3], [[1], [2]]])
    def test_a_completion_s_prompt_may_have_any_shape(self, prompt: object) -> None:
        profile = read({"model": "llama", "prompt": prompt}, path=COMPLETIONS_PATH)
        assert profile.prompt_bytes == len(json.dumps(prompt))

    def test_the_prefix_covers_tools_then_messages(self) -> None:
        tools = [{"type": "function", "function": {"name": "look_up"}}]
        body = b'{"messages": %s, "model": "llama", "tools": %s}' % (
            json.dumps(MESSAGES).encode(),
            json.dumps(tools).encode(),
        )
        profile = read(body)
        text = json.dumps(tools) + json.dumps(MESSAGES)
        salt = prefix_salt(ModelName("llama"), TenantName("default"), None)
        chain, length = prefix_chain(salt, [text.encode()], block_bytes=16, blocks_max=8)
        assert (profile.prefix, profile.prompt_bytes) == (chain, length)
        assert profile.prefix_blocks == 8

    def test_a_longer_conversation_shares_the_beginning(self) -> None:
        first = read(chat())
        second = read(chat(messages=[*MESSAGES, {"role": "assistant", "content": "Well"}]))
        shared = len(json.dumps(MESSAGES)) // 16 - 1
        assert shared > 1
        assert first.prefix[: shared * 8] == second.prefix[: shared * 8]

    def test_a_picture_is_as_long_as_its_tokens_and_as_much_to_send_as_its_data(self) -> None:
        def pictured(data: str, last: str) -> RequestProfile:
            image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
            content = [{"type": "text", "text": "What is it?"}, image, {"type": "text", "text": last}]
            return read(chat(messages=[{"role": "user", "content": content}]))

        data = "iVBORw0KGgo" * 60_000
        profile = pictured(data, "")
        assert 4 * 1024 < profile.prompt_bytes < 4 * 1024 + 200
        assert len(data) < profile.sent_bytes == profile.bytes_to_send < len(data) + 300
        assert profile.prefix == pictured(data, "More.").prefix != pictured(data[1:], "").prefix
        plain = read(chat())
        assert (plain.sent_bytes, plain.bytes_to_send) == (0, plain.prompt_bytes)

    @pytest.mark.parametrize("other", [chat(model="qwen"), chat(cache_salt="x")])
    def test_prefixes_are_shared_by_nobody_else(self, other: dict[str, object]) -> None:
        assert read(chat()).prefix[:8] != read(other).prefix[:8]

    def test_null_is_absent(self) -> None:
        assert read(chat(tools=None, stream=None, max_tokens=None)) == read(chat())

    def test_numbers_and_flags_in_quotes_are_understood(self) -> None:
        assert read(chat(stream="true", max_tokens="5")) == read(chat(stream=True, max_tokens=5))


class TestSessionKey:
    def key(self, body: dict[str, object] | None = None, **headers: str) -> str:
        return read(body or chat(), **headers).session_key

    def test_hints_keep_a_session_together_whatever_is_said(self) -> None:
        assert self.key(chat(user="ann")) == self.key(chat(user="ann", messages=[]))
        assert self.key(chat(user="ann")) != self.key(chat(user="bob"))

    def test_the_nearest_hint_wins(self) -> None:
        session = self.key(x_session_id="s")
        assert self.key(chat(session_id="t", user="ann"), x_session_id="s", x_user_id="u") == session
        assert self.key(chat(session_id="s", user="ann")) == session
        assert self.key(chat(user="s"), x_user_id="u") == session
        assert self.key(x_user_id="s") == session

    def test_without_a_hint_the_beginning_of_the_prompt_is_the_session(self) -> None:
        longer = chat(messages=[*MESSAGES, {"role": "user", "content": "more"}])
        assert self.key() == self.key(longer)
        assert self.key() != self.key(chat(messages=[{"role": "user", "content": "Quite another question to ask"}]))

    def test_a_prompt_shorter_than_a_block_still_has_one(self) -> None:
        short = {"model": "llama", "prompt": "hi"}
        assert read(short, path=COMPLETIONS_PATH).session_key
        assert read({"model": "llama"}).session_key

    def test_it_never_shows_who_it_is(self) -> None:
        assert "ann@example.net" not in self.key(chat(user="ann@example.net"))


class TestFaults:
    @pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b'{"model": "a"', b"\xff\xfe", DEEP])
    def test_what_is_not_json(self, body: bytes) -> None:
        assert fault(body).kind is errors.INVALID_JSON

    @pytest.mark.parametrize(
        "body",
        [
            [],
            {"messages": MESSAGES},
            chat(model=5),
            chat(model=""),
            chat(model="x" * 300),
            chat(model="a\nb"),
            chat(stream="perhaps"),
            chat(max_tokens="many"),
            chat(user={"id": 1}),
        ],
    )
    def test_fields_of_the_wrong_kind(self, body: object) -> None:
        assert fault(body).kind is errors.INVALID_FIELD


class TestReferences:
    def test_a_request_follows_the_response_that_it_names(self) -> None:
        body = {"model": "llama", "input": "hi", "previous_response_id": "resp_1"}
        profile = read(body, path=RESPONSES_PATH)
        assert profile.follows == response_key(TenantName("default"), "resp_1")
        assert not profile.is_control
        assert read(body | {"previous_response_id": None}, path=RESPONSES_PATH).follows == ""

    def test_looking_at_one_needs_no_model(self) -> None:
        profile = control_profile("resp_1", read_caller({}, R1, SETTINGS), SETTINGS, stream=True)
        assert (profile.model, profile.prefix, profile.stream, profile.is_control) == ("", b"", True, True)
        assert profile.follows == profile.session_key == response_key(TenantName("default"), "resp_1")

    def test_a_tenant_s_reference_is_its_own(self) -> None:
        trusting = replace(SETTINGS, trust_tenant_header=True)
        keys = {
            control_profile("resp_1", read_caller(headers, R1, trusting), trusting, stream=False).follows
            for headers in ({}, {"x-nightside-tenant": "acme"}, {"x-nightside-tenant": "other"})
        }
        assert len(keys) == 3


class TestOtherCalls:
    def test_what_fills_no_cache_has_no_prefix_but_a_size(self) -> None:
        counting, asking = (read(chat(), path=path) for path in (COUNT_TOKENS_PATH, MESSAGES_PATH))
        assert (counting.prefix_blocks, counting.prompt_bytes) == (0, asking.prompt_bytes)
        assert asking.prefix_blocks > 0
        assert counting.session_key

    @pytest.mark.parametrize("limit", [-1, 2**40, 10**30])
    def test_a_limit_that_is_none_is_for_the_engine_to_refuse(self, limit: int) -> None:
        assert read(chat(max_tokens=limit)).output_tokens_max is None


def http_headers(values: dict[str, str]) -> Headers:
    headers = Headers()
    headers.update(values)
    return headers


class TestHeaders:
    def test_an_engine_sees_only_what_is_listed(self) -> None:
        headers = {
            "authorization": "Bearer client",
            "x-api-key": "client",
            "cookie": "a=b",
            "x-nightside-tenant": "acme",
            "x-forwarded-for": "192.0.2.1",
            "x-data-parallel-rank": "3",
            "connection": "close",
            "content-type": "application/json",
            "traceparent": "00-1-2-01",
        }
        assert engine_headers(http_headers(headers), R1) == (
            ("content-type", "application/json"),
            ("traceparent", "00-1-2-01"),
            ("x-request-id", "r1"),
        )

    @pytest.mark.parametrize("wanted", ["req-1", "a" * 64])
    def test_a_plain_id_is_kept(self, wanted: str) -> None:
        assert choose_request_id({"x-request-id": wanted}) == wanted

    @pytest.mark.parametrize("wanted", ["", "a" * 65, "a b", "ä", "../x", 'a"b', "-a"])
    def test_any_other_is_replaced(self, wanted: str) -> None:
        chosen = choose_request_id({"x-request-id": wanted})
        assert len(chosen) == 32
        assert chosen != choose_request_id({})

    def test_the_tenant_header_counts_only_behind_something_that_sets_it(self) -> None:
        headers = {"x-nightside-tenant": "acme"}
        assert read_caller(headers, R1, SETTINGS).tenant == "default"
        trusting = HttpSettings(GatewayId("us-1"), US, trust_tenant_header=True)
        assert read_caller(headers, R1, trusting).tenant == "acme"
        assert read_caller({}, R1, trusting).tenant == "default"
        with pytest.raises(ClientFault):
            read_caller({"x-nightside-tenant": "a b"}, R1, trusting)

    def test_where_there_are_keys_only_one_that_says_so_may_name_a_tenant(self) -> None:
        trusting = HttpSettings(GatewayId("us-1"), US, trust_tenant_header=True)
        key = ClientKey(KeyId("a"), TenantName("acme"))
        with pytest.raises(ClientFault) as refused:
            read_caller({"x-nightside-tenant": "clinic"}, R1, trusting, key)
        assert (refused.value.kind.status, refused.value.kind.code) == (403, "tenant_not_allowed")
        for headers in ({}, {"x-nightside-tenant": "acme"}):
            assert read_caller(headers, R1, trusting, key).tenant == "acme"
        proxy = replace(key, may_name_tenant=True)
        assert read_caller({"x-nightside-tenant": "clinic"}, R1, trusting, proxy).tenant == "clinic"
        assert read_caller({}, R1, trusting, proxy).tenant == "acme"
        assert read_caller({"x-nightside-tenant": "clinic"}, R1, SETTINGS, proxy).tenant == "acme"

    @pytest.mark.parametrize("told", ["urgent", "", "interactive,batch", "x" * 500])
    def test_a_class_that_is_none_is_refused_by_its_header(self, told: str) -> None:
        with pytest.raises(ClientFault) as refused:
            read_caller({"x-nightside-class": told}, R1, SETTINGS)
        assert (refused.value.kind.status, refused.value.kind.code) == (400, "invalid_class")
        assert refused.value.param == "x-nightside-class"
        assert "interactive, batch, best_effort" in refused.value.detail
        assert len(refused.value.detail) < 120

    def test_the_class_is_the_headers_then_the_keys_then_interactive(self) -> None:
        key = ClientKey(KeyId("a"), TenantName("acme"), service_class=ServiceClass.BATCH)
        assert read(chat()).service_class is ServiceClass.INTERACTIVE
        assert read(chat(), x_nightside_class=" Best_Effort ").service_class is ServiceClass.BEST_EFFORT
        assert self.served_as(key) is ServiceClass.BATCH
        assert self.served_as(key, "best_effort") is ServiceClass.BEST_EFFORT
        with pytest.raises(ClientFault) as refused:
            self.served_as(key, "interactive")
        assert (refused.value.kind.status, refused.value.kind.code) == (403, "class_not_allowed")

    def test_what_key_and_client_leave_open_the_tenant_says_and_then_the_model(self) -> None:
        config = CoreConfig(
            tenants={TenantName("acme"): TenantConfig(service_class=ServiceClass.BATCH)},
            classes=ClassesConfig(best_effort=BestEffortConfig(models=(ModelName("llama"),))),
        )
        promises = Promises()
        promises.apply(config.tenants, config.classes.by_model())
        acme, other = ClientKey(KeyId("a"), TenantName("acme")), ClientKey(KeyId("b"), TenantName("zeta"))
        assert self.served_as(acme, promises=promises) is ServiceClass.BATCH
        assert self.served_as(other, promises=promises) is ServiceClass.BEST_EFFORT
        assert self.served_as(other, "interactive", promises=promises) is ServiceClass.INTERACTIVE
        with pytest.raises(ClientFault):
            self.served_as(acme, "interactive", promises=promises)
        better = replace(acme, service_class=ServiceClass.INTERACTIVE)
        assert self.served_as(better, promises=promises) is ServiceClass.INTERACTIVE

    def served_as(self, key: ClientKey, named: str = "", promises: Promises = NO_PROMISES) -> ServiceClass:
        caller = read_caller({"x-nightside-class": named} if named else {}, R1, SETTINGS, key)
        body = json.dumps(chat()).encode()
        return read_request(CHAT_PATH, body, caller, SETTINGS, promises=promises).profile.service_class

    def test_a_client_may_say_how_long_it_has(self) -> None:
        assert read_caller({"x-nightside-deadline": " 1.5s "}, R1, SETTINGS).patience_ns == 1_500_000_000
        assert read_caller({}, R1, SETTINGS).patience_ns is None
        for told in ("soon", "", "-3s", "9" * 4000):
            with pytest.raises(ClientFault) as refused:
                read_caller({"x-nightside-deadline": told}, R1, SETTINGS)
            assert refused.value.param == "x-nightside-deadline"
            assert len(refused.value.detail) <= 120

    @pytest.mark.parametrize("name", ["accept", "traceparent", "tracestate", "user-agent", "x-session-id"])
    def test_bytes_are_kept_as_they_came(self, name: str) -> None:
        for raw in (b"caf\xc3\xa9", "\u65e5\u672c\u8a9e".encode(), b"\xff\xfe", b"a\tb"):
            headers = dict(engine_headers(http_headers({name: raw.decode("latin-1")}), R1))
            assert headers[name].encode("latin-1") == raw

    def test_lines_of_a_trace_header_are_one_list_and_of_any_other_the_first_counts(self) -> None:
        headers = http_headers({"traceparent": "a", "tracestate": "b", "user-agent": "c"})
        for name in tuple(headers):
            headers.repeat(name, "again")
        assert dict(engine_headers(headers, R1)) == {
            "traceparent": "a,again",
            "tracestate": "b,again",
            "user-agent": "c",
            "x-request-id": "r1",
        }

    def test_a_session_is_the_same_by_whatever_name(self) -> None:
        japanese, less, invalid = (
            raw.decode("latin-1") for raw in ("\u65e5\u672c\u8a9e".encode(), "\u65e5\u672c".encode(), b"\xff")
        )
        one = read(chat(), x_session_id=japanese).session_key
        assert one == read(chat(), x_session_id=japanese).session_key
        assert one != read(chat(), x_session_id=less).session_key
        assert read(chat(), x_session_id=invalid).session_key


class TestHints:
    def test_headers_and_body_are_taken_together_and_headers_count_first(self) -> None:
        body = chat(nvext={"agent_hints": {"osl": 9, "priority": 4, "speculative_prefill": True}})
        assert read(body).hints == Hints(9, 4, comes_again=True)
        told = read(body, x_nightside_output_tokens=" 7 ", x_nightside_session_end="True")
        assert told.hints == Hints(7, 4, ends_session=True, comes_again=True)
        none = read(body, x_nightside_output_tokens="1", x_nightside_priority="0", x_nightside_prefix_again="false")
        assert none.hints == Hints(1), "a header that says 0 or false counts, too"

    @pytest.mark.parametrize(
        "body", [chat(), chat(nvext={}), chat(nvext={"agent_hints": {"speculative_prefill": True}})]
    )
    def test_hints_that_say_nothing_are_none_at_all(self, body: dict[str, object]) -> None:
        assert read(body, x_nightside_priority="0", x_nightside_prefix_again="false").hints is NO_HINTS

    @pytest.mark.parametrize("path", [CHAT_PATH, COMPLETIONS_PATH, RESPONSES_PATH, MESSAGES_PATH])
    def test_every_generating_call_takes_them_and_no_engine_sees_the_extensions(self, path: str) -> None:
        raw = json.dumps({"model": "llama", "nvext": {"agent_hints": {"osl": 9}, "backend_instance_id": 3}, "x": 1})
        parsed = read_request(path, raw.encode(), read_caller({}, R1, SETTINGS), SETTINGS)
        assert parsed.profile.hints == Hints(output_tokens=9)
        assert json.loads(parsed.body) == {"model": "llama", "x": 1}

    def test_a_body_without_extensions_is_sent_as_it_came(self) -> None:
        raw = json.dumps(chat()).encode()
        assert read_request(CHAT_PATH, raw, read_caller({}, R1, SETTINGS), SETTINGS).body is raw

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("x-nightside-output-tokens", "0"),
            ("x-nightside-output-tokens", "many"),
            ("x-nightside-output-tokens", "9" * 30),
            ("x-nightside-priority", "-1"),
            ("x-nightside-priority", "1001"),
            ("x-nightside-priority", "\u0661"),
            ("x-nightside-session-end", "maybe"),
            ("x-nightside-prefix-again", ""),
        ],
    )
    def test_a_malformed_header_is_refused_by_its_name(self, name: str, told: str) -> None:
        with pytest.raises(ClientFault) as refused:
            read_caller({name: told}, R1, SETTINGS)
        assert (refused.value.kind, refused.value.param) == (errors.INVALID_HEADER, name)

    def test_malformed_extensions_are_refused_by_their_name(self) -> None:
        refused = fault(chat(nvext={"agent_hints": {"osl": "long"}}))
        assert (refused.kind, refused.param) == (errors.INVALID_FIELD, "nvext")
        assert "agent_hints.osl" in str(refused.detail)
