"""KV events, outside the core."""
