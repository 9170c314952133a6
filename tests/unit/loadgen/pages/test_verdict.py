"""The best run: by how much, and not where it is no difference."""

from __future__ import annotations

from typing import Any

from loadgen.figures import Figures
from loadgen.pages.verdict import MeasureVerdict, verdicts


def run(name: str, tokens: float = 100.0, p90_ms: float | None = 1000.0, **rest: Any) -> Figures:
    ttft = None if p90_ms is None else {"p50": p90_ms / 2, "p90": p90_ms}
    total = {"tokens_per_s": tokens, "ttft_ms": ttft, "prefix_hit_rate": 0.5, "cached_share": 0.25}
    return {"name": name, "total": total | {"requests": 100, "failed": 0, "unfinished": 0} | rest}


def of(title: str, *runs: Figures) -> MeasureVerdict:
    return next(verdict for verdict in verdicts(runs) if title in verdict.title)


def words(verdict: MeasureVerdict) -> tuple[str, str, tuple[str, ...]]:
    others = tuple(each.replace("\u00a0", " ") for each in verdict.others)
    return verdict.answer.replace("\u00a0", " "), verdict.best, others


def test_the_best_is_named_with_how_the_next_and_the_last_stand_to_it() -> None:
    runs = run("a", 1000, 3000), run("b", 1200, 500), run("c", 1100, 600), run("d", 300, 90_000)
    assert words(of("tokens", *runs)) == ("1,200 /s", "b", ("c 1,100 /s (−8 %)", "d 300 /s (× 0.25)"))
    assert words(of("p90", *runs)) == ("0.5 s", "b", ("c 0.6 s (+20 %)", "d 90 s (× 180)"))


def test_what_differs_little_is_the_same() -> None:
    assert words(of("tokens", run("a", 100), run("b", 99))) == ("100 /s", "about the same in all runs", ())
    assert words(of("tokens", run("a", 99), run("b", 100), run("c", 90)))[1:] == ("b and a", ("c 90 /s (−10 %)",))


def test_shares_differ_by_points() -> None:
    runs = run("a", prefix_hit_rate=0.753), run("b", prefix_hit_rate=0.782)
    assert words(of("hits", *runs)) == ("78.2 %", "b", ("a 75.3 % (−2.9 points)",))
    failed = run("a", failed=3, unfinished=2), run("b")
    assert words(of("failed", *failed)) == ("0.0 %", "b", ("a 5.0 % (+5.0 points)",))


def test_hits_are_what_answers_say_where_engines_were_not_asked() -> None:
    assert words(of("hits", run("a", prefix_hit_rate=None))) == ("25.0 %", "", ())


def test_what_was_not_measured_is_not_compared() -> None:
    assert words(of("p90", run("a", p90_ms=None))) == ("–", "not measured", ())
    assert words(of("p90", run("a", p90_ms=None), run("b")))[:2] == ("1 s", "b")
    assert words(of("hits", run("a", prefix_hit_rate=None, cached_share=None)))[1] == "not measured"


def test_who_loses_requests_is_never_the_quickest() -> None:
    losing = run("a", p90_ms=100, prefix_hit_rate=0.9, failed=1, unfinished=1)
    runs = losing, run("b", p90_ms=900), run("c", p90_ms=1800)
    assert words(of("p90", *runs)) == ("0.9 s", "b", ("c 1.8 s (× 2)", "a is left out: it lost 2.0 %"))
    assert of("p50", *runs).best == "b"
    assert of("hits", *runs).best == "b and c"
    assert of("failed", *runs).best == "b and c"
    assert of("p90", run("a", p90_ms=100, failed=1), run("b")).best == "a"


def test_where_all_lose_requests_they_are_compared_and_what_they_lost_is_said() -> None:
    one, other = run("a", p90_ms=100, unfinished=30), run("b", p90_ms=900, failed=2)
    assert words(of("p90", one)) == ("0.1 s", "", ("a lost 30.0 %",))
    assert words(of("p90", one, other)) == ("0.1 s", "a", ("b 0.9 s (× 9)", "a lost 30.0 %", "b lost 2.0 %"))
    assert words(of("p90", one, run("b", p90_ms=None))) == ("0.1 s", "a", ("a lost 30.0 %",))
    assert words(of("p90", run("a", p90_ms=None, failed=100))) == ("–", "not measured", ("a lost 100.0 %",))


def test_one_run_is_no_best() -> None:
    assert [each.title for each in verdicts([run("a")])] == [
        "Output tokens",
        "TTFT, p90",
        "TTFT, p50",
        "Prefix hits",
        "Failed or unfinished",
    ]
    assert verdicts([run("a"), run("b")])[0].title == "Most output tokens"
