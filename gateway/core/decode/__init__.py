"""Which decode worker of a disaggregated pool gets which request, and when (BalanceRoute).

It knows workers, entries and time, and nothing of requests' attempts, of targets, or of how anything is sent.
"""
