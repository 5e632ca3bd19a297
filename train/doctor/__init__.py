"""``beton doctor``: what bounds a training run on this machine, what is set up wrongly, and what to change.

Measuring and judging are separate. `pipeline`, `storage` and `facts` measure; `judge` and `checks` turn the measured
values into findings and are pure functions, so that their rules can be tested without a slow disk or a cluster.
Where to start reading: ``measurements`` (what is known), ``budget`` (the arithmetic), ``judge`` (the causes), ``cli``.
"""
