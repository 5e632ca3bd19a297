"""Benchmarks loaders against each other: the same pipeline and the same bytes, one process per loader.

``beton bench`` and the scripts in ``benchmarks/`` share this code; the loaders are those of ``train.loaders``.

==================  ==========================================================================================
``cli``             ``beton bench FILE``
``spec``            one loader's task: file, pipeline, batch size, workers
``harness``         starts a process per loader, interleaves rounds, pauses loaders that are not being measured
``timing``          the child process: builds one loader, times a round on request
``machine``         the machine, package versions, CPU time used by other processes
``report``          JSON, Markdown and plots
``shuffle``         ``beton bench shuffle``; its report is in ``shuffle_report``
==================  ==========================================================================================
"""
