"""Output to local folders and object stores."""
