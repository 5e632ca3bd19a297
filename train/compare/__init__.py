"""Compares loaders by the same training, and reports."""
