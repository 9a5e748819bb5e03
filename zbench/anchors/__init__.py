"""Anchors: what others have measured, beside what this project's own plans, clock and costs predict. Pure: no torch.

Three groups, one file each: all-to-all bandwidths and compute coefficients (collective), attention on
several GPUs (attention), whole training steps (training). Published numbers are data files with their
source; docs/cost.md tells which constants were chosen knowing which of them.
"""
