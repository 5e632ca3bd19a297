"""Synthetic images for demos and tests."""
