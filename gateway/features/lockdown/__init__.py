"""Lockdown, outside the core: its command and its row in the status."""
