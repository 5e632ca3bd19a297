"""Stored bytes to pixels and values in memory of the caller."""
