"""The commands ``beton convert SOURCE``, one a file: words into a source, which ``converters.cli`` then converts."""
