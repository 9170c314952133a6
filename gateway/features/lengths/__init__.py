"""Pools by length, outside the core."""
