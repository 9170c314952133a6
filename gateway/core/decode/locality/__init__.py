"""Expert locality of decode workers (ELDR): how near a request's prompt is to what each worker's experts serve.

It computes from counts and arrays that it is given, and decides nothing: `gateway/core/decode/eldr.py` does.
"""
