from __future__ import annotations

from anthropic.types import ModelInfo
from openai.types import Model

from gateway.core.vocabulary import ModelName
from gateway.door.models import model_entry, models_page
from gateway.door.shapes import ErrorShape

A, B = ModelName("a"), ModelName("b")


def test_openai_s_clients_read_their_own_list() -> None:
    page = models_page([A, B], ErrorShape.OPENAI)
    assert page == {"object": "list", "data": [model_entry(A, ErrorShape.OPENAI), model_entry(B, ErrorShape.OPENAI)]}
    assert Model.model_validate(model_entry(A, ErrorShape.OPENAI)).id == "a"


def test_anthropic_s_clients_read_theirs() -> None:
    page = models_page([A, B], ErrorShape.MESSAGES)
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("a", "b", False)
    assert ModelInfo.model_validate(model_entry(A, ErrorShape.MESSAGES)).id == "a"
    assert models_page([], ErrorShape.MESSAGES)["first_id"] is None
