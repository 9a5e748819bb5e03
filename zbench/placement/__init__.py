"""Where the models of a job with rollouts go: which of them share GPUs, and how many GPUs each set of them has."""
