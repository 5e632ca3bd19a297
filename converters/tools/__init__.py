"""Verbs for ``.beton`` files that exist, one module per verb.

``commands.py`` holds the command line, ``input_files.py`` and ``derived_files.py`` the streaming copy that the verbs
share. Nothing here knows how a dataset is converted. Stored bytes are copied; only verbs whose purpose needs pixels
decode or encode images.
"""
