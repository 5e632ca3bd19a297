"""Measure loaders against each other: one harness, one pipeline definition, the same bytes, a process each.

Owns what ``beton bench`` and the scripts in ``benchmarks/`` share; the loaders are those of ``train.loaders``.

==================  ==========================================================================================
``cli``             ``beton bench FILE``
``spec``            what one loader is asked to do: file, pipeline, batch size, workers
``harness``         starts a process for each loader, interleaves their rounds, freezes those not measured
``timing``          the process: builds one loader, times a round when asked
``machine``         which machine, which versions, who else used the processor
``report``          JSON, Markdown and picture
``shuffle``         ``beton bench shuffle``; what it shows is in ``shuffle_report``
==================  ==========================================================================================
"""
