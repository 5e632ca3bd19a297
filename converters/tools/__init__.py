"""Commands for existing ``.beton`` files, one module per command.

``commands.py`` holds the command line, ``input_files.py`` and ``derived_files.py`` the streaming copy that they share.
Nothing here knows how a dataset is converted. Stored bytes are copied; images are decoded or encoded only by commands
that need pixels.

Their functions share these arguments:

overwrite : bool
    Whether existing files may be replaced, once the new ones are complete.
verify : bool
    Whether to compare the input with its checksums first, so that no damage gets a valid checksum.
num_workers : int
    Threads for verifying and decoding; in `upgrade` processes that re-code (0: the calling process).
quiet : bool
    No progress on stderr.
"""
