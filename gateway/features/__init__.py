"""Optional features of a gateway: all that each is outside the core, in a package of its own."""
