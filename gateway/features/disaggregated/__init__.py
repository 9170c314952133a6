"""Disaggregated pools, outside the core."""
