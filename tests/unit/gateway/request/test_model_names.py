from __future__ import annotations

import json

import pytest

from gateway.core.vocabulary import ModelName, TenantName
from gateway.request.model_names import ModelNames, Renamer, body_for

QWEN = ModelName("Qwen/Qwen3-32B")
SMALL = ModelName("Qwen/Qwen3-8B")
ASKED = ModelName("gpt-4o")
TENANT = TenantName("acme")


def names(served: tuple[ModelName, ...]) -> ModelNames:
    return ModelNames(
        lambda: {ASKED: (QWEN, SMALL)},
        lambda meant, _tenant, _process, _follows: next((each for each in meant if each in served), None),
    )


class TestWhatAModelIsCalled:
    @pytest.mark.parametrize(("served", "found"), [((QWEN, SMALL), QWEN), ((SMALL,), SMALL), ((), ASKED)])
    def test_the_first_that_is_served_is_meant(self, served: tuple[ModelName, ...], found: ModelName) -> None:
        one = names(served)
        assert one.resolved(ASKED, one.stands_for(ASKED), TENANT, None) == found

    def test_any_other_name_is_a_model_s_own_and_nobody_is_asked(self) -> None:
        one = names(())
        assert one.stands_for(QWEN) == (QWEN,)
        assert one.resolved(QWEN, (QWEN,), TENANT, None) == QWEN

    def test_a_name_is_listed_while_something_that_it_stands_for_is(self) -> None:
        assert names(()).listed([SMALL]) == [SMALL, ASKED]
        assert names(()).listed([ModelName("llama")]) == ["llama"]


def test_a_body_names_the_model_and_is_else_as_it_came() -> None:
    body = b'{"messages":[{"role":"user","content":"\\"model\\": \\"gpt-4o\\""}], "model" : "gpt-4o" ,"x":1}'
    assert body_for(body, QWEN) == body.replace(b': "gpt-4o" ', b': "Qwen/Qwen3-32B" ')


class TestWhatAnAnswerIsCalled:
    def test_each_event_names_what_was_asked_for(self) -> None:
        rename = Renamer(QWEN, ASKED)
        events = b'data: {"id":"1","model":"Qwen/Qwen3-32B","choices":[]}\n\n' * 2
        assert rename(events) == events.replace(b"Qwen/Qwen3-32B", b"gpt-4o")
        assert rename(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"

    def test_what_a_model_wrote_is_left_alone(self) -> None:
        said = json.dumps({"model": QWEN})
        answer = json.dumps({"model": QWEN, "choices": [{"message": {"content": said}}]})
        renamed = json.loads(Renamer(QWEN, ASKED)(answer.encode()))
        assert renamed == {"model": ASKED, "choices": [{"message": {"content": said}}]}

    def test_an_engine_may_go_by_another_name_than_it_was_asked_by(self) -> None:
        rename = Renamer(QWEN, ASKED)
        first = rename(b'data: {"model":"/weights/qwen","metadata":{"model":"mine"}}\n\n')
        assert first == b'data: {"model":"gpt-4o","metadata":{"model":"mine"}}\n\n'
        assert rename(b'data: {"metadata":{"model":"mine"}}\n\n') == b'data: {"metadata":{"model":"mine"}}\n\n'
        assert rename(b'data: {"model": "/weights/qwen"}\n\n') == b'data: {"model":"gpt-4o"}\n\n'

    def test_a_name_may_be_any_text(self) -> None:
        odd = 'gpt "4o" \\1 é'
        assert json.loads(Renamer(QWEN, odd)(json.dumps({"model": QWEN}).encode())) == {"model": odd}
