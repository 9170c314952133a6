"""KV events: engines tell what their KV caches store and remove."""
