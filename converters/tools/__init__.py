"""Caring for ``.beton`` files that exist: repair, merge, split, append, diff, export, upgrade; one module a verb.

``commands.py`` holds the command line, ``copying.py`` the streaming copy that the verbs share. Nothing here knows how
a dataset is converted, and nothing decodes or encodes an image unless the verb's very purpose is to.
"""
