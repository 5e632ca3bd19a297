"""One image: how it is read, checked, and stored."""
