"""Fair sharing and service classes, outside the core."""
