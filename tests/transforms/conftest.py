"""Files that tests of transforms read through a Loader."""

from tests.loader.conftest import photos_file

__all__ = ["photos_file"]
