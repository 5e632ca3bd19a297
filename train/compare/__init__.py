"""The same training with several loaders, and the report."""
