"""Feed training from ``.beton`` files: the public names of the library, loaded on first use.

This is the front door; ``__init__.pyi`` lists its names, once. Importing it costs nothing: neither torch nor numba, no
native library, no global state. A name's module is imported when the name is first touched, so the converters start
fast and need no torch.

Examples
--------
>>> import dataloading
>>> "Loader" in dir(dataloading)
True
"""

from typing import Any

import lazy_loader

__version__ = "0.1.0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except AttributeError:
        if name in __all__:
            raise  # the fault of the module that should define it
        from dataloading.messages import did_you_mean

        hint = "" if name.startswith("_") else did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint and '. ' + hint}") from None
