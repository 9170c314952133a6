"""Prices outside the core: price lists as files and from a controller, the list in force, its metrics, and the price of
an audit record."""
