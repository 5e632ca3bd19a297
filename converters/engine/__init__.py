"""A conversion: samples through workers into files, resumable."""
