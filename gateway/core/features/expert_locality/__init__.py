"""Expert locality of decode workers (ELDR): how near a request's prompt is to the requests that each worker's experts
serve.

The package computes from given counts and arrays, and makes no decisions, but for `eldr.py` and `balance_local.py`.
"""
