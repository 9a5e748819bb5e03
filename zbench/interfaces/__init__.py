"""The interfaces of a system, a workload, an executor and a tracker, and what passes between them."""
