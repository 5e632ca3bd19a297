"""Kinds of dataset that can be converted, one a file: each finds samples cheaply and reads them in the workers.

``converters/source.py`` is what all of them look like to the engine, ``reading.py`` how files and URLs are read. A
source knows nothing of image policies, worker processes or ``.beton`` files being written.
"""
