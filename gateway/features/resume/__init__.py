"""Resume, outside the core."""
