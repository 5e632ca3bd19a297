"""Converts image datasets to ``.beton`` files: sources, the image policy, and the engine of worker processes.

``beton convert`` is the command; `write` does the same from Python for any dataset that can be indexed.
``__init__.pyi`` lists the public names. They load on first use:
``beton convert --help`` must not wait for Pillow and NumPy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
