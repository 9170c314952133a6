"""Scaling: the number of replicas wanted in each region, from arriving, waiting and running requests and from the spare
capacity of neighbouring regions.

The package never starts or stops a replica: it states what is wanted, and an external autoscaler acts on it.
"""
