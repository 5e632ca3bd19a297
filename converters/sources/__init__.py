"""Kinds of dataset that can be converted, one per file. Each lists samples in the parent and reads them in the workers.

``converters/source.py`` defines their protocol; ``reading.py`` reads files and URLs. Sources know nothing of image
policies, worker processes or writing.
"""
