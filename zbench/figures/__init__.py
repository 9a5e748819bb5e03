"""The papers' figures: python -m zbench.figures NAME. One file a figure, beside what all of them share.

A figure is a module with EXPERIMENTS (yamls of conf/experiment that make its record), SIZE (inches), PANELS (rows,
columns), `table(records)`, which is pure, `draw(axes, table)`, and `where(records)`, the words on what was simulated.
"""
