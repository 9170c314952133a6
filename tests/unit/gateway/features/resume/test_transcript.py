"""Transcript: what is kept of an answer while it passes, what it counts for, and when keeping stops."""

from __future__ import annotations

import json

import pytest

from gateway.features.resume.transcript import FOLD_BYTES, PATHS, Transcript
from gateway.request.answer_events import Said
from gateway.request.engine_api import CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH
from gateway.request.kept_answer import NoRemainder
from tests.fakes.engine import DONE, MESSAGE_START, ROLE, chat_chunk, event, named_event, token

BLOCK_START = named_event("content_block_start", index=2, content_block={"type": "text", "text": ""})


def delta(text: str) -> bytes:
    return named_event("content_block_delta", index=2, delta={"type": "text_delta", "text": text})


CREATED = named_event("response.created", sequence_number=0, response={"id": "resp_1", "status": "in_progress"})
ITEM = named_event("response.output_item.added", sequence_number=1, output_index=0, item={"type": "message", "id": "m"})
PART = named_event("response.content_part.added", sequence_number=2, part={"type": "output_text", "text": ""})


def piece(number: int, text: str) -> bytes:
    return named_event("response.output_text.delta", sequence_number=number, delta=text)


class Room:
    def __init__(self, bytes_max: int = 1 << 30) -> None:
        self.bytes_max = bytes_max
        self.held = 0

    def hold(self, more: int) -> bool:
        if self.held + more > self.bytes_max:
            return False
        self.held += more
        return True


def kept(
    *blocks: bytes, path: str = CHAT_PATH, room: Room | None = None, output_tokens_max: int | None = None
) -> Transcript:
    passed: list[bytes] = []

    def put(block: bytes) -> bool:
        passed.append(block)
        return True

    transcript = Transcript(path, (room or Room()).hold, put, output_tokens_max=output_tokens_max)
    assert all(map(transcript.put, blocks))
    assert passed == list(blocks), "everything goes to the client as it came"
    return transcript


def said(*blocks: bytes, path: str = CHAT_PATH, output_tokens_max: int | None = None) -> Said:
    return kept(*blocks, path=path, output_tokens_max=output_tokens_max).said()


def counted(text: str, tokens: int, **choice: object) -> bytes:
    return event(
        {"choices": [{"index": 0, "delta": {"content": text}, **choice}], "usage": {"completion_tokens": tokens}}
    )


def test_a_chat() -> None:
    head = {"id": "chatcmpl-9", "created": 7, "model": "llama"}
    first = event({**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    told = said(first + token("Grüß"), b": keep-alive\n\n", token(" Gott"), token(""))
    assert (told.text, told.tokens) == ("Grüß Gott", 2), "what has no text yet is written anew"
    assert (told.answer_id, told.created, told.model) == ("chatcmpl-9", 7, "llama")


def test_a_completion_with_its_token_ids() -> None:
    """Tokens whose text has not come out yet are generated again."""
    one = {"index": 0, "text": "a", "token_ids": [5, 6], "prompt_token_ids": [1, 2]}
    half = {"index": 0, "text": "", "token_ids": [7]}
    other = {"index": 0, "text": "ü", "token_ids": [8]}
    told = said(event({"choices": [one]}), event({"choices": [half]}), path=COMPLETIONS_PATH)
    assert (told.token_ids, told.prompt_token_ids, told.tokens) == ([5, 6], [1, 2], 2)
    blocks = [event({"choices": [each]}) for each in (one, half, other, half)]
    assert said(*blocks, path=COMPLETIONS_PATH).token_ids == [5, 6, 7, 8]
    without = event({"choices": [{"index": 0, "text": "b"}]})
    assert said(blocks[0], without, path=COMPLETIONS_PATH).token_ids is None


@pytest.mark.parametrize("blocks", [1, 1000])
def test_tokens_count_once_their_text_has_come_out(blocks: int) -> None:
    """Counting earlier would end an answer that broke within a character that many tokens too soon. `blocks`: few
    events are read one by one, many as events that are all alike."""
    halves = [token("x"), token(""), token("ü"), token("")] * blocks
    assert said(ROLE, *halves).tokens == 4 * blocks - 1
    assert said(ROLE, *halves, token("y")).tokens == 4 * blocks + 1
    assert said(ROLE, token("a b c d e f g h"), counted("", 9)).tokens == 8


def test_a_message() -> None:
    told = said(MESSAGE_START, named_event("ping"), BLOCK_START, delta("Hel"), delta("lo"), path=MESSAGES_PATH)
    assert (told.text, told.tokens, told.index, told.answer_id) == ("Hello", 2, 2, "m")


def test_a_response() -> None:
    told = said(CREATED, ITEM, PART, piece(3, "Hel"), piece(4, "lo"), path=RESPONSES_PATH)
    assert (told.text, told.tokens, told.next_number) == ("Hello", 2, 5)
    assert (told.response["id"], told.item["id"]) == ("resp_1", "m")


def test_usage_that_is_told_all_the_while_counts_better_than_events() -> None:
    assert said(ROLE, counted("a b c", 3)).tokens == 3
    assert said(ROLE, token("ab"), token(""), counted("", 4)).tokens == 2, "two of which have no text yet"
    assert said(ROLE, counted("\u00fc", 2), output_tokens_max=2).tokens == 2, "a token may be one byte of a character"


@pytest.mark.parametrize("told", [10**320, 10**12, 1000, 51, -1], ids=lambda told: f"{len(str(told))} digits")
def test_usage_that_the_text_or_the_limit_rules_out_is_not_believed(told: int) -> None:
    """A count above the limit would pass for an answer that lacks only its finish, and its rest would be lost."""
    short = said(ROLE, token("Hel"), counted("lo", told), output_tokens_max=50)
    assert (short.text, short.tokens) == ("Hello", 2)
    assert said(ROLE, counted("Hello", told)).tokens == 1
    assert said(ROLE, counted(60 * "a ", told), output_tokens_max=50).tokens == 1


def test_no_answer_has_more_tokens_than_were_asked_for() -> None:
    assert said(ROLE, *map(token, "abcd"), output_tokens_max=3).tokens == 3
    ids = {"index": 0, "text": "a", "token_ids": [5, 6, 7]}
    assert said(event({"choices": [ids]}), path=COMPLETIONS_PATH, output_tokens_max=2).tokens == 2


def test_token_ids_count_better_than_usage() -> None:
    assert said(ROLE, counted("Hello", 4, token_ids=[5, 6])).tokens == 2


@pytest.mark.parametrize(("told", "created"), [(7.5, 7), (1e308, 0), (2**63, 0), (-1, 0)])
def test_a_time_of_creation_that_clients_cannot_read_is_not_repeated(told: float, created: int) -> None:
    opened = {"id": "c", "created": told, "choices": [{"index": 0, "delta": {"content": "a"}}]}
    assert said(event(opened)).created == created


@pytest.mark.parametrize(
    ("blocks", "path", "why"),
    [
        ((ROLE, chat_chunk({"tool_calls": [{"index": 0}]})), CHAT_PATH, "tools"),
        ((ROLE, chat_chunk({"reasoning": "hm"})), CHAT_PATH, "reasoning"),
        ((ROLE, chat_chunk({"reasoning_content": "hm"})), CHAT_PATH, "reasoning"),
        ((ROLE, token("a"), chat_chunk({"content": ""}, "stop")), CHAT_PATH, "why it ends"),
        ((event({"choices": [{"index": 1, "delta": {"content": "a"}}]}),), CHAT_PATH, "several"),
        ((event({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"a": 1}}]}),), CHAT_PATH, "logprobs"),
        ((ROLE,), CHAT_PATH, "nothing"),
        ((ROLE, b"data: {nonsense\n\n"), CHAT_PATH, "known"),
        ((ROLE, b'data: {"choices": 7}\n\n'), CHAT_PATH, "known"),
        ((MESSAGE_START, BLOCK_START, BLOCK_START), MESSAGES_PATH, "only one"),
        ((MESSAGE_START, BLOCK_START, delta("a"), named_event("content_block_stop", index=2)), MESSAGES_PATH, "ends"),
        (
            (MESSAGE_START, named_event("content_block_start", content_block={"type": "thinking"})),
            MESSAGES_PATH,
            "text",
        ),
        ((CREATED, piece(1, "a")), RESPONSES_PATH, "announced"),
        ((CREATED, ITEM, ITEM), RESPONSES_PATH, "only one"),
        ((CREATED, ITEM, PART, piece(3, "a"), named_event("response.output_text.done")), RESPONSES_PATH, "ends"),
    ],
)
def test_what_nobody_could_go_on_with(blocks: tuple[bytes, ...], path: str, why: str) -> None:
    with pytest.raises(NoRemainder, match=why):
        said(*blocks, path=path)


def test_it_takes_no_more_room_than_the_text_once_there_is_a_lot() -> None:
    room = Room()
    words = [f" word{number}" for number in range(4000)]
    transcript = kept(ROLE, *map(token, words), room=room)
    passed = sum(len(token(word)) for word in words)
    assert room.held < passed / 4
    assert room.held <= 3 * FOLD_BYTES
    assert transcript.said().text == "".join(words)
    assert transcript.said().tokens == 4000


@pytest.mark.parametrize("odd", [None, chat_chunk({"content": "odd", "name": "x"}), b": keep-alive\n\n", ROLE])
def test_events_that_are_all_alike_are_read_as_each_by_itself(odd: bytes | None) -> None:
    """Texts of any kind are covered, with and without an event of another kind among them."""
    texts = ['"quoted"', "back\\slash\\", "new\nline", "", "gr\u00fc\u00df \U0001f600", "data: x\n\n"] * 150
    blocks = [token(text) for text in texts]
    if odd is not None:
        blocks.insert(500, odd)
    told = said(ROLE, *blocks)
    assert told.text.replace("odd", "") == "".join(texts)
    assert told.tokens == len(texts) + (odd is not None and b"odd" in odd)


@pytest.mark.parametrize("ids", [[7], [7, 8]], ids=["a repeated token", "two tokens in an event"])
def test_token_ids_of_events_that_are_all_alike_are_all_kept(ids: list[int]) -> None:
    alike = event({"choices": [{"index": 0, "delta": {"content": " ha"}, "token_ids": ids}]})
    told = said(ROLE, *[alike] * 6)
    assert (told.text, told.token_ids, told.tokens) == (6 * " ha", 6 * ids, 6 * len(ids))


def test_without_room_it_keeps_nothing_and_says_so() -> None:
    """Room may run out within a character or an event: events pass whole, and the transcript keeps all or nothing."""
    room = Room(bytes_max=40 * 1024)
    transcript = kept(ROLE, *(token("ü" * 100) for _ in range(400)), DONE, room=room)
    assert transcript.is_dropped
    assert room.held == 0
    with pytest.raises(NoRemainder, match="room"):
        transcript.said()


def test_what_is_wide_and_what_is_told_in_numbers_counts_for_what_it_takes() -> None:
    """A wide character makes every other character as wide, and a number is an object."""
    room = Room()
    kept(ROLE, *(token("😀 and plain text") for _ in range(3000)), room=room)
    assert room.held >= 4 * 3000 * len("😀 and plain text")
    room = Room()
    first = {"index": 0, "text": "a", "token_ids": [1], "prompt_token_ids": list(range(20_000))}
    kept(event({"choices": [first]}), path=COMPLETIONS_PATH, room=room)
    assert room.held >= 20_000 * 32
    room = Room()
    silent = {"index": 0, "text": "", "token_ids": list(range(20_000))}
    kept(event({"choices": [silent]}), path=COMPLETIONS_PATH, room=room)
    assert room.held >= 20_000 * 32, "whose text has yet to come, too"
    room = Room()
    created = named_event("response.created", sequence_number=0, response={"id": "r", "instructions": "x" * 100_000})
    kept(created, ITEM, path=RESPONSES_PATH, room=room)
    assert room.held >= 100_000


def test_an_answer_that_turns_out_unsound_gives_its_room_back() -> None:
    room = Room()
    tools = chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": "x" * 60}}]})
    transcript = kept(ROLE, *[tools] * 800, room=room)
    assert (room.held, transcript.is_dropped) == (0, False)
    with pytest.raises(NoRemainder, match="tools"):
        transcript.said()


def test_what_was_said_is_a_copy() -> None:
    """The rest is written from the state at the break, whatever passes since."""
    transcript = kept(ROLE, token("a"))
    before = transcript.said()
    transcript.put(token("b"))
    assert (before.text, before.tokens, transcript.said().text) == ("a", 1, "ab")


def test_the_calls() -> None:
    assert {CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH} == PATHS
    assert json.loads(token("a")[6:])["choices"]


def test_an_answer_that_cannot_go_on_now_cannot_later() -> None:
    """A part was lost in reading it: what follows is not the whole."""
    transcript = kept(token("a"), chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}))
    for _ in range(2):
        with pytest.raises(NoRemainder, match="tools"):
            transcript.said()
        transcript.put(token("b"))
