"""Stored responses, outside the core."""
