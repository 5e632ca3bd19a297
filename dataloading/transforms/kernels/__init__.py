"""The compiled code of the transforms: the only modules below ``transforms`` that import Numba.

Kernels know arrays and numbers; they know nothing of the classes users write down. Importing
``dataloading.transforms`` does not import this package: a pipeline does, when it compiles.
"""
