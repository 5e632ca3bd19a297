"""The tests. Idle threads of OpenMP sleep here and in child processes: by default they spin, on cores others need."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported
