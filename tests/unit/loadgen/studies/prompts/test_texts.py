from __future__ import annotations

import gzip
from pathlib import Path

from gateway.core.vocabulary import Category
from loadgen.studies.prompts.texts import documents_in, roff_text

PAGE = r""".\" a comment
.TH CAT 1
.SH NAME
cat \- print \fBfiles\fP
.PP
.B cat
.RI [ option ]

It\(aqs simple.
"""


def test_of_a_manual_page_its_words_are_left() -> None:
    assert roff_text(PAGE) == "NAME\ncat - print files\ncat\n[ option ]\n\nIt's simple.\n"


def test_what_a_text_is_follows_from_where_it_is(tmp_path: Path) -> None:
    for folder in ("usr/share/man/man1", "usr/share/man/ja/man1", "usr/lib/x", "usr/include/e"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "usr/share/man/man1/a.1.gz").write_bytes(gzip.compress(b"word " * 1000))
    (tmp_path / "usr/share/man/ja/man1/b.1.gz").write_bytes(gzip.compress("猫".encode() * 1000))
    (tmp_path / "usr/share/man/ja/man1/c.1.gz").write_bytes(gzip.compress("猫".encode("shift-jis") * 1000))
    (tmp_path / "usr/lib/x/d.py").write_text("x = 1\n" * 500)
    (tmp_path / "usr/lib/x/short.py").write_text("x = 1\n")
    (tmp_path / "usr/include/e/F").write_text("int x;\n" * 500)
    found = [(each.language, each.category, each.name) for each in documents_in(tmp_path)]
    assert found == [
        ("en", Category.PROSE, "a.1.gz"),
        ("ja", Category.CJK, "b.1.gz"),
        ("Python", Category.CODE, "d.py"),
        ("C++", Category.CODE, "F"),
    ]
