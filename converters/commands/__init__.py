"""The commands ``beton convert SOURCE``, one per file: each builds a source, which ``converters.cli`` converts."""
