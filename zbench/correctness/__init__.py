"""Checks that a device computes what it should: attention kernels against float64, and every system's plans, run by
several ranks of one machine, against the dense model and against the CPU.

python -m zbench.correctness --device cuda --out results/gpu/correctness.jsonl. See docs/gpu.md.
python -m zbench.correctness matrix: every system, model and cluster, simulated. See docs/conformance.md.
"""
