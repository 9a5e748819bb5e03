"""What a system, a workload, an executor and a tracker have to offer, and what passes between them."""
