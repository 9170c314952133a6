"""Cache digests, outside the core."""
