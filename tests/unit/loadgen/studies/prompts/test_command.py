"""The command on a handful of texts whose tokens are counted as four bytes each."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gateway.core.features.lengths import token_budget
from gateway.core.kernel import requests
from gateway.core.vocabulary import Category
from loadgen.studies.prompts import command
from loadgen.studies.prompts.command import measured, token_budget_classifier
from loadgen.studies.prompts.page import page_of
from loadgen.studies.prompts.texts import Document

TEXTS = {
    ("en", Category.PROSE): "It was the best of times, it was the worst of times, it was the age of wisdom.\n" * 60,
    ("ja", Category.CJK): "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。\n" * 60,
    ("Python", Category.CODE): inspect.getsource(token_budget.TokenBudget) + inspect.getsource(requests.RequestState),
}
DOCUMENTS = [
    Document(language, category, f"{language}{number}", text, {"fours": -(-len(text.encode()) // 4)})
    for (language, category), text in TEXTS.items()
    for number in range(6)
]


def test_a_page_says_what_was_measured() -> None:
    found = measured(DOCUMENTS, drawn_seeds=2, text_seeds=1, requests=400)
    seen = {each.language: each for each in found.seen}
    assert seen["ja"].taken_for == {Category.CJK: seen["ja"].documents}
    assert seen["base64"].right == 1
    by_look = found.texts["fours"]["looks"]
    assert max(by_look.ratio_error.values()) < 0.01, "every text is four bytes a token"
    assert max(by_look.misrouted.values()) == 0
    page = page_of(found)
    assert "| ja | cjk |" in page
    assert "| fours | looks, tenants |" in page
    assert all(f"| {category} |" in page for category in Category)


def test_the_command_reads_documents_and_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_DRAWN_REQUESTS", 400)
    small = {"drawn_seeds": 1, "text_seeds": 1, "requests": 400}
    monkeypatch.setattr(command, "measured", lambda documents: measured(documents, **small))
    source, page = tmp_path / "documents.jsonl", tmp_path / "page.md"
    source.write_bytes(b"\n".join(map(msgspec.json.encode, DOCUMENTS)))
    done = CliRunner().invoke(token_budget_classifier, [str(source), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text().startswith("# What a prompt is")


def test_documents_that_nobody_has_counted_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "documents.jsonl"
    source.write_text(json.dumps({"language": "en", "category": "prose", "name": "a", "text": "x", "tokens": {}}))
    done = CliRunner().invoke(token_budget_classifier, [str(source), "-o", str(tmp_path / "page.md")])
    assert (done.exit_code, "no documents with their tokens" in done.output) == (1, True)
