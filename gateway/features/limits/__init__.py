"""Tenants' limits, outside the core."""
