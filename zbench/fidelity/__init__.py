"""python -m zbench.fidelity: how well the simulator predicts what was measured."""
