"""Media parts of prompts, found without counting their base64 data as text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.config.content import ContentConfig, ModelContentConfig
from gateway.core.vocabulary import ModelName
from gateway.request.bodies import read_body
from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RERANK_PATHS, RESPONSES_PATH
from gateway.request.media import Media, MediaKind, MediaTokens, media_in

MODEL = ModelName("m")
DATA = "iVBORw0KGgo" * 2000
PICTURE = f"data:image/png;base64,{DATA}"
TEXT = {"type": "text", "text": "What is it?"}
TURN = {"role": "user", "content": "What is it?"}
ASSUMED = ContentConfig(image_tokens=100, audio_tokens=200, video_tokens=300, file_tokens=400)
ANTHROPIC = {"type": "base64", "media_type": "image/png", "data": DATA}


def found(path: str, tokens: MediaTokens | None = None, *, stand_ins_bytes_max: int = 1 << 20, **fields: Any) -> Media:
    media = look(path, tokens, stand_ins_bytes_max=stand_ins_bytes_max, **fields)
    assert media is not None
    return media


def look(
    path: str,
    tokens: MediaTokens | None = None,
    *,
    stand_ins_bytes_max: int = 1 << 20,
    indent: int | None = None,
    **of: Any,
) -> Media | None:
    raw = json.dumps({"model": "m", **of}, indent=indent).encode()
    body = read_body(path, raw, passes_priority=False)
    return media_in(body, raw, MODEL, tokens or MediaTokens(lambda: ASSUMED), stand_ins_bytes_max=stand_ins_bytes_max)


def said(*parts: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": list(parts)}]


PARTS: list[tuple[str, dict[str, Any], MediaKind]] = [
    (CHAT_PATH, {"type": "image_url", "image_url": {"url": PICTURE}}, MediaKind.IMAGE),
    (CHAT_PATH, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, MediaKind.IMAGE),
    (CHAT_PATH, {"image_url": {"url": PICTURE}}, MediaKind.IMAGE),
    (CHAT_PATH, {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}, MediaKind.AUDIO),
    (CHAT_PATH, {"type": "audio_url", "audio_url": {"url": "https://example.org/a.wav"}}, MediaKind.AUDIO),
    (CHAT_PATH, {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{DATA}"}}, MediaKind.VIDEO),
    (CHAT_PATH, {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{DATA}"}}, MediaKind.FILE),
    (CHAT_PATH, {"type": "file", "file": {"file_id": "file-1"}}, MediaKind.FILE),
    (CHAT_PATH, {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{DATA}"}}, MediaKind.AUDIO),
    (CHAT_PATH, {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}}, MediaKind.VIDEO),
    (CHAT_PATH, {"type": "video", "video": f"data:video/mp4;base64,{DATA}"}, MediaKind.VIDEO),
    (CHAT_PATH, {"type": "input_video", "input_video": {"data": DATA}}, MediaKind.VIDEO),
    (CHAT_PATH, {"type": "audio", "audio": f"data:audio/wav;base64,{DATA}"}, MediaKind.AUDIO),
    (CHAT_PATH, {"type": "image", "image": PICTURE}, MediaKind.IMAGE),
    (CHAT_PATH, {"type": "image_embeds", "image_embeds": DATA}, MediaKind.IMAGE),
    (CHAT_PATH, {"type": "audio_embeds", "audio_embeds": DATA}, MediaKind.AUDIO),
    (CHAT_PATH, {"audio_url": "https://example.org/a.wav"}, MediaKind.AUDIO),
    (CHAT_PATH, {"video_url": "https://example.org/a.mp4"}, MediaKind.VIDEO),
    *[
        (MESSAGES_PATH, {"type": name, "source": source}, kind)
        for name, kind in (("image", MediaKind.IMAGE), ("document", MediaKind.FILE))
        for source in (
            ANTHROPIC,
            {"type": "url", "url": "https://example.org/a"},
            {"type": "file", "file_id": "file_011"},
        )
    ],
    (MESSAGES_PATH, {"type": "document", "source": ANTHROPIC, "title": "A"}, MediaKind.FILE),
    (RESPONSES_PATH, {"type": "input_image", "image_url": PICTURE, "detail": "low"}, MediaKind.IMAGE),
    (RESPONSES_PATH, {"type": "input_image", "image_url": "https://example.org/a.png"}, MediaKind.IMAGE),
    (RESPONSES_PATH, {"type": "input_image", "file_id": "file-1"}, MediaKind.IMAGE),
    (RESPONSES_PATH, {"type": "input_audio", "input_audio": {"data": DATA, "format": "mp3"}}, MediaKind.AUDIO),
    (RESPONSES_PATH, {"type": "input_file", "filename": "a.pdf", "file_data": DATA}, MediaKind.FILE),
    (RESPONSES_PATH, {"type": "input_file", "file_url": "https://example.org/a.pdf"}, MediaKind.FILE),
    (RESPONSES_PATH, {"type": "input_file", "file_id": "file-1"}, MediaKind.FILE),
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(("path", "part", "kind"), PARTS)
def test_a_part_counts_by_tokens_and_the_rest_as_text(
    path: str, part: dict[str, Any], kind: MediaKind, indent: int | None
) -> None:
    name = "input" if path == RESPONSES_PATH else "messages"
    asked: dict[str, Any] = {name: said(TEXT, part, TEXT), "max_tokens": 1}
    media = found(path, indent=indent, **asked)
    assert media.counts == ((kind, 1),)
    tokens = ASSUMED.tokens_of(kind)
    assert media.prompt_bytes == media.text_bytes + 4 * tokens
    assert b"".join(media.pieces).count(b"What is it?") == 2
    assert DATA[:40].encode() not in b"".join(media.pieces)
    assert len(b"".join(media.pieces)) == media.prompt_bytes
    if indent is None:
        assert media.text_bytes == len(json.dumps(asked[name])) - len(json.dumps(part))
        assert media.sent_bytes == len(json.dumps(asked[name]))


def test_parts_are_found_wherever_they_stand() -> None:
    """Places include a tool's result, an item among strings, a document of several parts, and documents to be
    compared."""
    image: dict[str, Any] = {"type": "image", "source": ANTHROPIC}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "here"}, image]}
    assert found(MESSAGES_PATH, messages=said(result), max_tokens=1).counts == ((MediaKind.IMAGE, 1),)
    several = {"type": "document", "source": {"type": "content", "content": [TEXT, image]}}
    assert found(MESSAGES_PATH, messages=said(several), max_tokens=1).counts == ((MediaKind.IMAGE, 1),)
    assert found(MESSAGES_PATH, system=[TEXT, image], messages=[], max_tokens=1).counts == ((MediaKind.IMAGE, 1),)
    assert found(CHAT_PATH, messages=said(PICTURE, "What is it?")).counts == ((MediaKind.IMAGE, 1),)
    output = [
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": PICTURE}]}
    ]
    assert found(RESPONSES_PATH, input=output).counts == ((MediaKind.IMAGE, 1),)
    screenshot = {"type": "computer_screenshot", "image_url": PICTURE}
    taken: list[Any] = [TURN, {"type": "computer_call_output", "call_id": "1", "output": screenshot}]
    assert found(RESPONSES_PATH, input=taken).counts == ((MediaKind.IMAGE, 1),)
    made = [TURN, {"type": "image_generation_call", "id": "1", "status": "completed", "result": DATA}]
    assert found(RESPONSES_PATH, input=made).counts == ((MediaKind.IMAGE, 1),)
    documents = ["a text", {"content": [PARTS[0][1]]}]
    assert found(RERANK_PATHS[0], query="q", documents=documents).counts == ((MediaKind.IMAGE, 1),)
    both = found(CHAT_PATH, messages=[*said(TEXT, PARTS[0][1]), *said(PARTS[3][1], PARTS[1][1])])
    assert dict(both.counts) == {MediaKind.IMAGE: 2, MediaKind.AUDIO: 1}
    assert both.prompt_bytes == both.text_bytes + 4 * 400


def test_what_only_looks_like_a_part_is_text() -> None:
    schema = {"type": "object", "properties": {"file": {"type": "string"}, "image_url": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    quoted = json.dumps(PARTS[0][1])
    used = {"type": "tool_use", "id": "1", "name": "f", "input": {"file": "a.py", "image": PICTURE}}
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "word " * 99}}
    assert look(CHAT_PATH, messages=[{"role": "user", "content": "Hello"}], tools=tools) is None
    assert look(CHAT_PATH, messages=[{"role": "user", "content": quoted}]) is None
    assert look(CHAT_PATH, messages=[{"role": "user", "content": PICTURE}]) is None, "the model reads all of it"
    assert look(CHAT_PATH, messages=said({"type": "text", "text": quoted})) is None
    assert look(MESSAGES_PATH, messages=said(used, plain), max_tokens=1) is None
    assert look(COMPLETIONS_PATH, prompt=[quoted, "file"]) is None
    deep: object = PARTS[0][1]
    for _ in range(12):
        deep = [deep]
    for odd in (1, True, None, deep, {"content": 3}, {"content": ["file", {"content": [1]}]}):
        assert look(CHAT_PATH, messages=odd) is None
    assert look(CHAT_PATH, messages=[None, {"type": "image_url"}, 3]) is not None


def test_a_long_text_is_no_part_either() -> None:
    text = 'He said "image_url" and {"type": "image"}\n' * 4000
    assert look(CHAT_PATH, messages=[{"role": "user", "content": text}]) is None
    media = found(CHAT_PATH, messages=[{"role": "user", "content": text}, *said(PARTS[0][1])])
    assert media.text_bytes > len(text)


def test_a_body_that_would_take_long_to_take_apart_counts_as_it_was_written() -> None:
    assert look(CHAT_PATH, messages=[*({} for _ in range(70_000)), *said(PARTS[0][1])]) is None
    assert look(CHAT_PATH, messages=["a"] * 70_000 + said(PARTS[0][1])) is None


def test_another_picture_is_another_prefix_and_the_same_one_is_the_same() -> None:
    def pieces(url: str, **more: str) -> bytes:
        media = found(CHAT_PATH, messages=said(TEXT, {"type": "image_url", "image_url": {"url": url, **more}}))
        return b"".join(media.pieces)

    one, again, other = pieces(PICTURE), pieces(PICTURE), pieces(PICTURE[:-1] + "p")
    assert one == again
    assert len({one, other, pieces(PICTURE, detail="low"), pieces("https://example.org/a.png")}) == 4
    begins = one.index(b"What is it?")
    assert one[:begins] == other[:begins]


@given(st.lists(st.tuples(st.text(max_size=40), st.integers(0, 3)), min_size=1, max_size=6), st.booleans())
def test_everything_but_the_parts_is_hashed_as_it_stands(turns: list[tuple[str, int]], ascii_only: bool) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": text}, *[PARTS[0][1]] * images]} for text, images in turns
    ]
    raw = json.dumps({"model": "m", "messages": messages}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    body = read_body(CHAT_PATH, raw, passes_priority=False)
    media = media_in(body, raw, MODEL, MediaTokens(lambda: ASSUMED))
    images = sum(images for _, images in turns)
    if media is None:
        assert images == 0
        return
    stands = media.pieces[1]
    told = json.dumps(messages, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert b"".join(media.pieces) == told.replace(json.dumps(PARTS[0][1]).encode(), bytes(stands))
    assert media.counts == ((MediaKind.IMAGE, images),)


_LEAVES = st.sampled_from([None, 1, "", "file", "a text", PICTURE[:60], "image_url"])
_NAMES = st.sampled_from(["content", "output", "source", "text", "image_url", "audio_url", "file", "role"])
_TYPES = st.sampled_from(["image_url", "image", "input_audio", "document", "file", "text", "content", "message"])
_SHAPES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_NAMES, inner, max_size=4)
        | st.tuples(st.dictionaries(_NAMES, inner, max_size=4), _TYPES).map(lambda both: {**both[0], "type": both[1]})
    ),
    max_leaves=20,
)


@given(_SHAPES, st.none() | st.integers(0, 2))
@example([{"output": [{"image_url": 1}, 5], "content": [{"type": "image"}]}], None)
def test_in_any_shape_all_but_the_parts_is_text_in_its_order(shape: Any, indent: int | None) -> None:
    media = look(CHAT_PATH, messages=shape, indent=indent)
    if media is None:
        return
    told = json.dumps({"messages": shape}, indent=indent).encode()
    count = sum(count for _, count in media.counts)
    assert len(media.pieces) == 2 * count + 1
    texts = [bytes(piece) for piece in media.pieces[::2]]
    assert sum(map(len, texts)) == media.text_bytes
    at = 0
    for text in texts:
        at = told.index(text, at) + len(text)
    assert (
        len(b"".join(media.pieces))
        == media.prompt_bytes
        == media.text_bytes + 4 * sum(ASSUMED.tokens_of(kind) * count for kind, count in media.counts)
    )


class TestTokens:
    def learnt(self, *seen: int, config: ContentConfig = ASSUMED) -> int:
        tokens = MediaTokens(lambda: config)
        media = found(CHAT_PATH, messages=said(TEXT, *[PARTS[0][1]] * 2))
        for each in seen:
            tokens.learn(MODEL, media, media.text_bytes // 4 + 2 * each)
        return tokens.of(MODEL, MediaKind.IMAGE)

    def test_what_is_declared_counts_then_what_was_learnt_then_what_is_assumed(self) -> None:
        declared = ContentConfig(models={MODEL: ModelContentConfig(image_tokens=1105)})
        assert self.learnt() == 100
        assert self.learnt(1105) == pytest.approx(1105, rel=0.1)
        assert self.learnt(1105, 5000, config=declared) == 1105
        tokens = MediaTokens(lambda: declared)
        assert tokens.of(MODEL, MediaKind.AUDIO) == 1024, "of which nothing is declared"
        assert tokens.of(ModelName("other"), MediaKind.IMAGE) == 1024

    def test_pictures_that_are_about_alike_leave_prefixes_as_they_are(self) -> None:
        assert self.learnt(1000, 1100, 1050, 950) == self.learnt(1000) == self.learnt(1070)
        assert self.learnt(*[1000] * 9, *[3000] * 40) == pytest.approx(3000, rel=0.2)

    def test_one_absurd_count_moves_little(self) -> None:
        assert self.learnt(*[1000] * 9, 10**9) < 1500
        assert self.learnt(10**9) <= 100_000 * 1.2

    def test_only_clear_cases_teach(self) -> None:
        tokens = MediaTokens(lambda: ASSUMED)
        mixed = found(CHAT_PATH, messages=said(PARTS[0][1], PARTS[3][1]))
        tokens.learn(MODEL, mixed, 5000)
        wordy = found(CHAT_PATH, messages=said({"type": "text", "text": "w" * 8000}, PARTS[0][1]))
        tokens.learn(MODEL, wordy, 3105)
        tokens.learn(MODEL, found(CHAT_PATH, messages=said(PARTS[0][1])), None)
        assert tokens.of(MODEL, MediaKind.IMAGE) == 100

    def test_a_prompt_s_parts_come_to_no_more_than_the_model_takes(self) -> None:
        tokens = MediaTokens(lambda: ASSUMED, lambda _: 150)
        media = found(CHAT_PATH, tokens, messages=said(*[PARTS[0][1]] * 3))
        assert media.prompt_bytes == media.text_bytes + 4 * 150
        assert found(CHAT_PATH, tokens, messages=said(PARTS[0][1])).prompt_bytes == media_bytes_of_one() + 4 * 100

    def test_what_is_beyond_all_that_is_hashed_needs_no_room(self) -> None:
        large = MediaTokens(lambda: ContentConfig(image_tokens=100_000))
        media = found(CHAT_PATH, large, stand_ins_bytes_max=1000, messages=said(*[PARTS[1][1]] * 50))
        assert media.prompt_bytes - media.text_bytes == 4 * 100_000 * 50
        assert sum(map(len, media.pieces)) < 10_000

    def test_other_parts_still_differ_where_there_is_no_room_for_all_of_them(self) -> None:
        large = MediaTokens(lambda: ContentConfig(image_tokens=100_000))
        links = [{"type": "image_url", "image_url": {"url": f"https://example.org/{number}"}} for number in range(51)]
        one, other = (
            found(CHAT_PATH, large, stand_ins_bytes_max=1000, messages=said(*links[:49], last)) for last in links[49:]
        )
        assert b"".join(one.pieces) != b"".join(other.pieces)
        assert b"".join(one.pieces[:-2]) == b"".join(other.pieces[:-2])

    def test_no_more_is_remembered_than_there_is_room_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gateway.request.media._LEARNT_MAX", 3)
        tokens, media = MediaTokens(lambda: ASSUMED), found(CHAT_PATH, messages=said(PARTS[0][1]))
        for number in range(5):
            tokens.learn(ModelName(f"m{number}"), media, 2000)
        assert [tokens.of(ModelName(f"m{number}"), MediaKind.IMAGE) == 100 for number in range(5)] == [
            *(True, True),
            *(False, False, False),
        ]


def media_bytes_of_one() -> int:
    return found(CHAT_PATH, messages=said(PARTS[0][1])).text_bytes
