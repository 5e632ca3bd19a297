"""Measure loaders against each other: one harness, one pipeline definition, the same bytes, a process each.

Owns what ``beton bench`` and the scripts in ``benchmarks/`` share. Where to start reading:

=============== =======================================================================================
``spec``        what one contender is asked to do: file, pipeline, batch size, workers
``contenders``  the loaders, one a file, each tuned as its own documentation advises
``process``     the child: builds one contender, runs a round when told
``rounds``      the parent: starts the children, interleaves their rounds, freezes those not measured
``numbers``     medians, spreads, ratios
``machine``     which machine, which versions, who else used the processor
``report``      JSON, Markdown and picture
=============== =======================================================================================
"""
