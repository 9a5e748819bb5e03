"""Experts by the logits of a layer's own router, which are known while the step runs and not before."""
