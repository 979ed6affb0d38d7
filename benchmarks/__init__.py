"""How fast the engine is: python -m benchmarks, from the root of the repository; docs/performance.md has figures."""

import os

# One core: before NumPy starts threads whose waiting would count as CPU time.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
