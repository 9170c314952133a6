"""Outer halves of the optional features, whose pure halves are in `gateway.core.features`."""
