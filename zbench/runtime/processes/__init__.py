"""Processes of ranks: started here or by torchrun and Slurm, called, watched, and blamed."""
