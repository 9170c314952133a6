"""Kernel of the core: takes in events, queues, places, follows and retries requests. It names no optional feature."""
