"""Leaving: a replica that is announced to be gone by a known time drains until then."""
