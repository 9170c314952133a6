"""Reads texts whose kind is known from their origin: manual pages in many languages, and source files. They are in
Debian packages that have been unpacked; it fetches nothing."""

from __future__ import annotations

import gzip
import random
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from gateway.core.value import value
from gateway.core.vocabulary import Category

_LANGUAGES = {
    **dict.fromkeys(
        ("", "cs", "de", "el", "es", "fr", "it", "nl", "pl", "pt_BR", "ru", "sv", "tr", "uk"), Category.PROSE
    ),
    **dict.fromkeys(("ja", "zh_CN", "zh_TW"), Category.CJK),
}
"""Languages of manual pages by Debian's folder; English has none."""
_SOURCES = {
    "py": "Python",
    "go": "Go",
    "rs": "Rust",
    "php": "PHP",
    "rb": "Ruby",
    "pm": "Perl",
    "js": "JavaScript",
}
_HEADERS = "usr/include"
"""Eigen's files have no suffix: C++."""
_BYTES_MIN, _BYTES_MAX = 1_500, 40_000
_EACH_MAX = 60
"""Maximum number of documents of one language."""
_SEED = 15

_COMMENT = re.compile(r"(?m)^[.']\\\".*\n|^'\\\".*\n")
_LAYOUT = re.compile(
    r"(?m)^\.\s*(TH|TP|PP|P|LP|IP|RS|RE|br|sp|nf|fi|ad|na|nh|hy|PD|de|\.|ie|el|if|so|ds|in|ti|ne|HP|EE|EX|UE|ME|YS)\b.*\n"
)
_MACRO = re.compile(r"(?m)^\.\s*[A-Za-z]{1,3}\s*")
_FONT = re.compile(r"\\f(\[[^]]*\]|\(..|.)|\\\(..|\\\*?\[[^]]*\]|\\s[+-]?\d|\\[&|:,/]")
_PLAIN = (("\\(aq", "'"), ("\\-", "-"), ("\\ ", " "), ("\\~", " "), ("\\e", "\\"))
_GAPS = re.compile(r"\n{3,}")


@value
class Document:
    language: str
    """Natural language, or programming language."""
    category: Category
    name: str
    text: str
    tokens: dict[str, int]
    """Counts by tokenizer; empty before they are counted."""

    @property
    def is_for_choosing(self) -> bool:
        """True for the half of the documents on which bounds are chosen; they are measured on the other half."""
        return zlib.crc32(self.name.encode()) % 2 == 0


def documents_in(folder: Path) -> Iterator[Document]:
    """Documents of the packages unpacked in `folder`, the same ones each time. Files that are not UTF-8 are left
    out."""
    chance = random.Random(_SEED)
    for language, category in _LANGUAGES.items():
        pages = folder.joinpath("usr/share/man", language).glob("man[1-8]/*.gz")
        yield from _some(pages, language or "en", category, chance)
    for suffix, language in _SOURCES.items():
        yield from _some(folder.rglob(f"*.{suffix}"), language, Category.CODE, chance)
    yield from _some(folder.joinpath(_HEADERS).rglob("*"), "C++", Category.CODE, chance)


def roff_text(source: str) -> str:
    """Approximate text of a manual page as a reader sees it: without comments, layout and fonts."""
    text = _MACRO.sub("", _LAYOUT.sub("", _COMMENT.sub("", source)))
    for written, meant in _PLAIN:
        text = text.replace(written, meant)
    return _GAPS.sub("\n\n", _FONT.sub("", text))


def _some(paths: Iterable[Path], language: str, category: Category, chance: random.Random) -> Iterator[Document]:
    found = sorted(path for path in paths if path.is_file() and ".min." not in path.name and "locale" not in path.parts)
    chance.shuffle(found)
    taken = 0
    for path in found:
        text = _read(path)
        if text is not None and _BYTES_MIN <= len(text.encode()) <= _BYTES_MAX:
            yield Document(language, category, path.name, text, {})
            taken += 1
        if taken == _EACH_MAX:
            return


def _read(path: Path) -> str | None:
    try:
        if path.suffix == ".gz":
            return roff_text(gzip.decompress(path.read_bytes()).decode())
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return None
