"""Decode tier of disaggregated pools: which decode worker gets which request, and when (BalanceRoute).

The tier knows workers, entries and time; attempts, targets and transport are unknown to it.
"""
