"""python -m zbench.warm: compiles the numerical kernels once."""
