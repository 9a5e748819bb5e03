"""python -m zbench.predicted: measured steps of one GPU beside simulated ones."""
