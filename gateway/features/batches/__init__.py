"""Batches: files of requests that clients hand in, executed as requests of class `batch`."""
