"""What the token-budget page says in words, above its figures; written after they were looked at."""

from __future__ import annotations

NOTES: tuple[str, ...] = ()
