"""Pools told apart by the length of the requests that they take."""
