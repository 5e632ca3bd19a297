"""Runs a conversion: worker processes convert samples into files, resumably."""
