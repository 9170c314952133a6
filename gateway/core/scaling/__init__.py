"""How many replicas are wanted where: from what arrives, waits and runs, and from what neighbours have to spare.

Nothing here starts or stops a replica: it says what is wanted, and somebody else's autoscaler does it.
"""
