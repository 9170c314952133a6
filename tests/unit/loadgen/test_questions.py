from __future__ import annotations

from loadgen.questions import parse_questions


def test_files_of_several_kinds_are_read() -> None:
    lines = [
        '{"question": "How many?", "answer": "4"}',
        '{"question_id": 81, "turns": ["Write.", "Write again."]}',
        "",
        "In plain words?\n",
    ]
    questions = parse_questions(lines)
    assert questions.asked == (("How many?",), ("Write.", "Write again."), ("In plain words?",))
    assert questions.unreadable.count == 0


def test_what_holds_no_question_is_counted() -> None:
    questions = parse_questions(['{"answer": "4"}', '{"question": 3}', '{"turns": ["a", " "]}', '{"quest', "fine"])
    assert questions.asked == (("fine",),)
    assert questions.unreadable.count == 4
    assert questions.unreadable.first[0].startswith("line 1: should hold a question")
