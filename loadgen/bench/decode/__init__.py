"""`nightside bench decode`: the cost of a tick of the decode tier."""
