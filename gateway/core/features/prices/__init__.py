"""Prices: lists of what replicas and egress cost, and the prices in force for placement."""
