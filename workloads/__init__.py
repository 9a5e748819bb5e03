"""Workloads: where the sequence lengths of a batch come from, one class a file.

Pure: no torch, no hydra. A workload is made from a yaml in conf/workload and has one method,
batch(step), whose result depends on nothing but the workload's fields, its seed and the step.
"""

import zbench  # noqa: F401  # before numba, which asks it where compiled functions are (zbench.run.stale)
