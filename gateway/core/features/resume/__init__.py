"""Resume of answers that break: settings and decisions."""
