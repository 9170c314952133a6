"""Changes of files while a gateway watches them: one case per line.

The content in force must stay in force, whatever a file becomes; a policy that cannot be read closes its region. The
error must name the file and the cause and quote no possible secret, and the gateway must not wait for a pipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Kind(Enum):
    TEXT = auto()
    """A new file with this content replaces the old one."""
    REWRITTEN = auto()
    """The same file is overwritten with this content."""
    LINK = auto()
    """A link to the path in `content`."""
    HUGE = auto()
    """A file of zeros, of the size in `content`."""
    PIPE = auto()
    FOLDER = auto()
    SOCKET = auto()
    NOTHING = auto()


@dataclass(frozen=True, slots=True)
class FileCase:
    name: str
    kind: Kind
    fault: str
    """Text that the error must contain."""
    content: bytes = b""


GOOD, HALF = b"%GOOD%", b"%HALF%"
"""Placeholders in `content` for the old file and for its first half."""
SECRET = "s3cr3t-of-somebody"
"""Text that no error may contain."""
_SECRET = SECRET.encode()
_LAUGHS = b"a0: &a0 [x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (depth, depth, b", ".join([b"*a%d" % (depth - 1)] * 9)) for depth in range(1, 12)
)

NO_FILE, NO_SUCH, TOO_LARGE = "is not a file", "cannot be read: No such file", "is larger than"
CONTROL = "unacceptable character"
# The error for a wrong shape differs by kind of file.
SHAPE = ""

# fmt: off
FILE_CASES = (
    FileCase("deleted", Kind.NOTHING, NO_SUCH),
    FileCase("a pipe that nobody writes to", Kind.PIPE, NO_FILE),
    FileCase("a folder", Kind.FOLDER, NO_FILE),
    FileCase("a socket", Kind.SOCKET, NO_FILE),
    FileCase("a link to a device that has no end", Kind.LINK, NO_FILE, b"/dev/zero"),
    FileCase("a link to a device that has nothing", Kind.LINK, NO_FILE, b"/dev/null"),
    FileCase("a link to a terminal", Kind.LINK, NO_FILE, b"/dev/ptmx"),
    FileCase("a link to nowhere", Kind.LINK, NO_SUCH, b"nowhere"),
    FileCase("a link to itself", Kind.LINK, "cannot be read: Too many levels", b"%SELF%"),
    FileCase("a link to a folder", Kind.LINK, NO_FILE, b"."),
    FileCase("a link through a file", Kind.LINK, "cannot be read: Not a directory", b"%SELF%.before/x"),
    FileCase("a link to a file of something else", Kind.LINK, SHAPE, b"/etc/passwd"),
    FileCase("a link to a file of this process", Kind.LINK, "", b"/proc/self/environ"),
    FileCase("64 GiB", Kind.HUGE, TOO_LARGE, b"%d" % (64 << 30)),
    FileCase("truncated to nothing", Kind.REWRITTEN, SHAPE),
    FileCase("nothing but an end of line", Kind.TEXT, SHAPE, b"\n"),
    FileCase("nothing but a comment", Kind.TEXT, SHAPE, b"# " + _SECRET + b"\n"),
    FileCase("half written, in its place", Kind.REWRITTEN, SHAPE, HALF),
    FileCase("half written, as another file", Kind.TEXT, SHAPE, HALF),
    FileCase("written over, with the rest of the old one behind", Kind.REWRITTEN, SHAPE, GOOD + HALF),
    FileCase("a sparse file behind it", Kind.REWRITTEN, CONTROL, GOOD + b"\0" * 4096),
    FileCase("nothing but NUL", Kind.TEXT, CONTROL, b"\0" * 512),
    FileCase("NUL in it", Kind.TEXT, CONTROL, GOOD + b"x: \0" + _SECRET),
    FileCase("an escape of a terminal", Kind.TEXT, CONTROL, b"\x1b[2J" + GOOD),
    FileCase("another encoding", Kind.TEXT, "is not UTF-8 text", b"\xff\xfe" + "x: y".encode("utf-16-le")),
    FileCase("a byte that is no text", Kind.TEXT, "is not UTF-8 text", GOOD + b"\xff"),
    FileCase("two marks of its byte order", Kind.TEXT, SHAPE, b"\xef\xbb\xbf\xef\xbb\xbf" + GOOD),
    FileCase("twice, one behind the other", Kind.TEXT, "is written twice", GOOD + GOOD),
    FileCase("two documents", Kind.TEXT, "single document", GOOD + b"---\n" + GOOD),
    FileCase("a key twice", Kind.TEXT, SHAPE, GOOD + b"x: 1\nx: " + _SECRET + b"\n"),
    FileCase("a key that is not known", Kind.TEXT, "x: is not a known key", GOOD + b"x: " + _SECRET + b"\n"),
    FileCase("a key that looks like lines of a log", Kind.TEXT, "holds a key that is not known, and no name", GOOD + b'"x\\nreloaded\\x1b[2J": 1\n'),
    FileCase("a key of 100,000 letters", Kind.TEXT, "", GOOD + b"? " + b"x" * 100_000 + b"\n: 1\n"),
    FileCase("500 keys that are not known", Kind.TEXT, SHAPE, GOOD + b"".join(b"x%d: 1\n" % number for number in range(500))),
    FileCase("a billion laughs", Kind.TEXT, "aliases", GOOD + _LAUGHS),
    FileCase("a list in itself", Kind.TEXT, "", GOOD + b"x: &x [*x]\n"),
    FileCase("10,000 brackets", Kind.TEXT, "nested too deeply", b"x: " + b"[" * 10_000),
    FileCase("a password that begins like an alias", Kind.TEXT, "", GOOD + b"x: *" + _SECRET + b"\n"),
    FileCase("a password that begins like a tag", Kind.TEXT, "tag", GOOD + b"x: !" + _SECRET + b"\n"),
    FileCase("a password with a tag's handle", Kind.TEXT, "tag handle", GOOD + b"x: !" + _SECRET + b"!y z\n"),
    FileCase("a password that begins like an anchor, twice", Kind.TEXT, "", GOOD + b"x: [&" + _SECRET + b" 1, &" + _SECRET + b" 2]\n"),
    FileCase("a password that is said to be a number", Kind.TEXT, "tag", GOOD + b"x: !!int " + _SECRET + b"\n"),
    FileCase("an object of Python's", Kind.TEXT, SHAPE, GOOD + b"x: !!python/object/apply:os.system [" + _SECRET + b"]\n"),
    FileCase("a private key", Kind.TEXT, SHAPE, b"-----BEGIN PRIVATE KEY-----\n" + _SECRET + b"\n-----END PRIVATE KEY-----\n"),
    FileCase("a line of a password file", Kind.TEXT, SHAPE, b"root:" + _SECRET + b":19000:0:99999:7:::\n"),
    FileCase("JSON that breaks off", Kind.TEXT, SHAPE, b'{"keys": [{"id": "' + _SECRET),
    FileCase("a list", Kind.TEXT, SHAPE, b"- " + _SECRET + b"\n"),
)
# fmt: on


class Part(Enum):
    """State of one of two files that belong together."""

    OLD = auto()
    NEW = auto()
    HALF = auto()
    EMPTY = auto()
    GONE = auto()
    PIPE = auto()
    OTHERS = auto()
    """A file that belongs to neither certificate nor key."""


@dataclass(frozen=True, slots=True)
class PairCase:
    """States of a certificate and its key, which may not belong together."""

    certificate: Part
    key: Part
    fault: str
    """Text that the error must contain; empty where the pair is accepted."""


UNFIT, UNREAD, NO_CERTIFICATE, NO_KEY = (
    "does not belong to",
    "cannot be read",
    "holds no certificates",
    "no private key",
)
# fmt: off
PAIR_CASES = (
    PairCase(Part.NEW, Part.NEW, ""),
    PairCase(Part.NEW, Part.OLD, UNFIT),
    PairCase(Part.OLD, Part.NEW, UNFIT),
    PairCase(Part.NEW, Part.HALF, NO_KEY),
    PairCase(Part.HALF, Part.NEW, NO_CERTIFICATE),
    PairCase(Part.NEW, Part.EMPTY, NO_KEY),
    PairCase(Part.EMPTY, Part.NEW, NO_CERTIFICATE),
    PairCase(Part.EMPTY, Part.EMPTY, NO_CERTIFICATE),
    PairCase(Part.NEW, Part.GONE, UNREAD),
    PairCase(Part.GONE, Part.NEW, UNREAD),
    PairCase(Part.GONE, Part.GONE, UNREAD),
    PairCase(Part.NEW, Part.PIPE, UNREAD),
    PairCase(Part.PIPE, Part.NEW, UNREAD),
    PairCase(Part.OTHERS, Part.NEW, UNFIT),
    PairCase(Part.NEW, Part.OTHERS, UNFIT),
    PairCase(Part.OTHERS, Part.OLD, UNFIT),
)
# fmt: on
