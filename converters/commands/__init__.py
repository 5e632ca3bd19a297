"""The commands ``beton convert SOURCE``, one per file: words into a source, which ``converters.cli`` converts."""
