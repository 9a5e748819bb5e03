"""A step of three layers whose activations wait in host memory between forward and backward."""


def offload_text(tokens: int, border: int, kept: int) -> str:
    """The step as text. border, kept: bytes of a token between layers, and of what waits."""
    return f"""step of 3 layers on 1 GPUs and 1 host memories
layout
  index t of batch: {tokens}
  tensor x[t]: copy, border, {border} bytes, home 0
  tensor u[t]: copy, layer, {kept} bytes, home 0
  tensor dx[t]: copy, border, {border} bytes, home 0
  formula u[t] = f(x[t])
  formula x'[t] = g(u[t])
  formula dx[t] = g_d(dx'[t], u[t])
  formula x[t] = begin(w)
  formula dx[t] = end(x[t], w)
  formula loss[t] = last(dx[t])
  tensor w: copy, none, 8 bytes, home 0
  tensor loss[t]: copy, none, {border} bytes, home 0
template begin of layout 0
  makes x.2
  needs w at 0
  leaves w at 0
  leaves x[0] at 0
  compute: compute x.2[0] at 0
template forward of layout 0
  makes u x
  needs x[0] at 0
  leaves x+1[0] at 0
  leaves u[0] at 1
  compute: compute u[0] at 0
  compute: compute x[0] at 0
  host: send u[0] 0 -> 1
template turn of layout 0
  makes dx.2
  needs x[0] at 0
  needs w at 0
  leaves dx[0] at 0
  compute: compute dx.2[0] at 0
template backward of layout 0
  makes dx
  needs dx+1[0] at 0
  needs u[0] at 1
  leaves dx[0] at 0
  host: send u[0] 1 -> 0
  compute: compute dx[0] at 0
template finish of layout 0
  makes loss
  needs dx[0] at 0
  compute: compute loss[0] at 0
play begin for layer 0
play forward for layers 0 to 2
play turn for layer 3
play backward for layers 2 to 0
play finish for layer 0
begins w at 0
"""
