"""Content of a body for the model, however its client writes JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.content import ContentConfig
from gateway.core.vocabulary import Category, ModelName, TenantName
from gateway.request import content as content_module
from gateway.request.bodies import read_body
from gateway.request.classifying import SAMPLE_BYTES
from gateway.request.content import Content, ContentReader, content_of
from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from gateway.request.media import MediaTokens

IMAGE = 1000
PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 2000
ZH = "今天的天气很好,我们去公园散步吧。"
TEXTS = {
    "prose": "It was the best of times, it was the worst of times. " * 20,
    "escapes": 'He said "no",\n\tand \\ then / nothing\r\n' * 20,
    "cjk": ZH * 20,
    "emoji": "😀 and 👩‍👩‍👧 " * 30,
    "one byte": "x",
}


def read(path: str, *, ascii_only: bool = False, **fields: Any) -> Content:
    raw = json.dumps({"model": "m", **fields}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    return content_of(read_body(path, raw, passes_priority=False), lambda _: IMAGE)


def chat(text: str, *, ascii_only: bool = False) -> Content:
    return read(CHAT_PATH, ascii_only=ascii_only, messages=[{"role": "user", "content": text}])


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("name", list(TEXTS))
def test_text_counts_by_its_own_bytes_however_it_is_escaped(name: str, ascii_only: bool) -> None:
    text = TEXTS[name]
    size = len(text.encode())
    found = chat(text, ascii_only=ascii_only)
    assert found.text_bytes == size
    assert found.category is chat(text).category
    parts = [{"type": "text", "text": text[:1]}, {"type": "text", "text": text[1:]}]
    blocks = [{"role": "user", "content": parts}]
    assert read(CHAT_PATH, ascii_only=ascii_only, messages=blocks).text_bytes == size
    assert read(MESSAGES_PATH, ascii_only=ascii_only, messages=blocks, system=text, max_tokens=1).text_bytes == 2 * size
    assert read(COMPLETIONS_PATH, ascii_only=ascii_only, prompt=text).text_bytes == size
    assert read(COMPLETIONS_PATH, ascii_only=ascii_only, prompt=[text, text]).text_bytes == 2 * size
    assert read(RESPONSES_PATH, ascii_only=ascii_only, input=text, instructions=text).text_bytes == 2 * size


@given(st.text(max_size=300), st.booleans())
def test_any_text_counts_by_its_own_bytes(text: str, ascii_only: bool) -> None:
    found = read(COMPLETIONS_PATH, ascii_only=ascii_only, prompt=f"x{text}")
    assert found.text_bytes == 1 + len(text.encode("utf-8", "replace"))


@pytest.mark.parametrize("ascii_only", [False, True])
def test_of_a_long_text_a_few_windows_tell_what_its_escapes_come_to(ascii_only: bool) -> None:
    text = (ZH + "\n" + TEXTS["prose"] + "😀\n") * 700
    found = chat(text, ascii_only=ascii_only)
    assert found.text_bytes == pytest.approx(len(text.encode()), rel=0.03)


@pytest.mark.parametrize(("written", "meant"), [(rb"\\", 1), (rb"\n", 1), (rb"\u0001", 1), (rb"\ud83d\ude00", 4)])
@pytest.mark.parametrize("before", [b"", b"x", b"xyz"])
def test_a_long_text_of_escapes_alone_counts_as_what_they_stand_for(written: bytes, meant: int, before: bytes) -> None:
    count = 200_000
    raw = b'{"model": "m", "prompt": "%b"}' % (before + written * count)
    found = content_of(read_body(COMPLETIONS_PATH, raw, passes_priority=False), lambda _: IMAGE)
    assert found.text_bytes == pytest.approx(meant * count, rel=0.01)


class CountedText(bytes):
    """Text that counts the bytes which are taken out of it."""

    looked_at = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.looked_at += len(found) if isinstance(found, bytes) else 1
        return found


@pytest.mark.parametrize("byte", [b"\\", b"\x80"])
def test_a_border_is_found_close_by(byte: bytes) -> None:
    text = CountedText(byte * 100_000)
    assert 50_000 - content_module._border(text, 50_000) < 20
    assert text.looked_at < 100


def test_a_picture_is_some_tokens_and_no_text() -> None:
    url = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PICTURE}}]
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    block = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    given_to_responses = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PICTURE}],
        }
    ]
    plain = chat("What is it?")
    for path, fields in (
        (CHAT_PATH, {"messages": [{"role": "user", "content": url}]}),
        (MESSAGES_PATH, {"messages": [{"role": "user", "content": block}]}),
        (RESPONSES_PATH, {"input": given_to_responses}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": [PICTURE, "What is it?"]}]}),
    ):
        found = read(path, **fields)
        assert found.text_bytes == len("What is it?"), path
        assert found.extra_tokens == plain.extra_tokens + IMAGE, path


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (CHAT_PATH, {"image_url": {"url": PICTURE}}),
        (CHAT_PATH, {"type": "image", "image": PICTURE}),
        (MESSAGES_PATH, {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}),
        (MESSAGES_PATH, {"type": "image", "source": {"type": "file", "file_id": "file_011"}}),
        (RESPONSES_PATH, {"type": "input_image", "file_id": "file-1"}),
        (RESPONSES_PATH, {"type": "computer_call_output", "output": {"type": "computer_screenshot", "file_id": "1"}}),
        (RESPONSES_PATH, {"type": "image_generation_call", "id": "1", "result": PICTURE}),
    ],
)
def test_each_shape_of_a_picture_is_some_tokens(path: str, part: dict[str, Any]) -> None:
    if path == RESPONSES_PATH and part["type"] != "input_image":
        found = read(path, input=[{"role": "user", "content": "What is it?"}, part])
    else:
        name, kind = ("input", "input_text") if path == RESPONSES_PATH else ("messages", "text")
        asked: dict[str, Any] = {name: [{"role": "user", "content": [{"type": kind, "text": "What is it?"}, part]}]}
        found = read(path, **asked)
    assert found.text_bytes == len("What is it?")
    assert found.extra_tokens == chat("What is it?").extra_tokens + IMAGE


def test_a_document_that_is_text_counts_by_its_text() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "word " * 99}
    several = {"type": "content", "content": [{"type": "text", "text": "word " * 99}]}
    for source in (plain, several):
        found = read(MESSAGES_PATH, messages=[{"role": "user", "content": [{"type": "document", "source": source}]}])
        assert (found.text_bytes, found.extra_tokens) == (5 * 99, chat("What is it?").extra_tokens)


def test_tools_and_their_calls_are_text_and_templates_add_to_each_message() -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    plain = chat("Hello")
    asked = read(CHAT_PATH, messages=[{"role": "user", "content": "Hello"}], tools=tools)
    assert asked.text_bytes == plain.text_bytes + len(json.dumps(tools))
    assert asked.extra_tokens > plain.extra_tokens
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"a":1}'}}
    turns = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "four"},
    ]
    followed = read(CHAT_PATH, messages=turns)
    assert followed.text_bytes > plain.text_bytes + len("four") + len('{"a":1}')
    assert followed.extra_tokens > plain.extra_tokens
    used = [
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "four"}]}],
        }
    ]
    assert read(MESSAGES_PATH, messages=used).text_bytes == len("four")
    output = [{"type": "function_call_output", "call_id": "1", "output": "four"}]
    assert read(RESPONSES_PATH, input=output).text_bytes == len("four")


def test_a_prompt_of_tokens_is_counted_by_its_client() -> None:
    for prompt in ([1, 2, 3], [[1, 2], [3]]):
        assert read(COMPLETIONS_PATH, prompt=prompt) == Content(1, 3, Category.MIXED)


def test_what_has_too_many_parts_counts_as_it_was_written() -> None:
    """Parsing its parts would hold up all other requests."""
    parts: list[dict[str, str]] = [{}] * 20_000
    found = read(CHAT_PATH, messages=parts)
    assert found.text_bytes == len(json.dumps(parts))
    assert read(COMPLETIONS_PATH, prompt=["a", "b"] * 50_000).text_bytes >= 100_000


def test_odd_shapes_are_for_the_engine_to_refuse() -> None:
    for messages in (
        1,
        True,
        {"content": 3},
        [[[[[[[[["deep"]]]]]]]]],
        [{"role": 1, "content": {"text": {}}}],
        [None, 3],
    ):
        assert read(CHAT_PATH, messages=messages).text_bytes >= 1
    assert read(CHAT_PATH) == Content(1, 0, Category.MIXED)


class TestReader:
    CONFIG = ContentConfig(image_tokens=7, tenants={TenantName("coders"): Category.CODE})

    def read(self, *, tenant: str = "others", said: Category | None = None, model: str = "m") -> Content | None:
        reader = ContentReader(self.CONFIG.tenants.get, lambda name: name == "m", MediaTokens(lambda: self.CONFIG))
        raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": TEXTS["prose"]}]}).encode()
        body = read_body(CHAT_PATH, raw, passes_priority=False)
        return reader.read(body, ModelName(model), TenantName(tenant), said)

    def kind(self, **who: Any) -> Category:
        found = self.read(**who)
        assert found is not None
        return found.category

    def test_nobody_looks_where_nobody_asks_for_tokens(self) -> None:
        assert self.read(model="other") is None

    def test_assumed_image_tokens_alone_refuse_no_request(self) -> None:
        """An estimate may exceed the longest pool's context by half, and assumed tokens alone stay within that half."""
        tokens = MediaTokens(lambda: self.CONFIG, lambda _: 40)
        reader = ContentReader(self.CONFIG.tenants.get, lambda _: True, tokens)
        image = {"type": "image_url", "image_url": {"url": PICTURE}}

        def extra(images: int) -> int:
            raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": [image] * images}]}).encode()
            found = reader.read(read_body(CHAT_PATH, raw, passes_priority=False), ModelName("m"), TenantName("t"), None)
            return 0 if found is None else found.extra_tokens - chat("").extra_tokens

        assert [extra(images) for images in (1, 2, 3, 100)] == [7, 14, 20, 20]

    def test_the_client_knows_best_then_its_tenant_then_its_text(self) -> None:
        assert self.kind() is Category.PROSE
        assert self.kind(tenant="coders") is Category.CODE
        assert self.kind(tenant="coders", said=Category.CJK) is Category.CJK


def test_a_classifier_is_shown_no_more_than_a_sample_and_never_nothing() -> None:
    shown: list[bytes] = []

    def classifier(sample: bytes) -> Category:
        shown.append(sample)
        return Category.CODE

    for text in (TEXTS["prose"] * 500, TEXTS["cjk"] * 2000, "x", ""):
        for ascii_only in (False, True):
            raw = json.dumps({"model": "m", "prompt": text}, ensure_ascii=ascii_only).encode()
            body = read_body(COMPLETIONS_PATH, raw, passes_priority=False)
            content_of(body, lambda _: 1, classifier=classifier)
    assert len(shown) == 6
    assert all(0 < len(sample) <= SAMPLE_BYTES for sample in shown)
