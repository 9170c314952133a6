"""Lockdown: an operator stops all forwarding."""
