"""Stored responses: which target has which, and the keys under which gateways tell each other of them."""
