"""`nightside bench decode`: what a tick of the decode tier costs."""
