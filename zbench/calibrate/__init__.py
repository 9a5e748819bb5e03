"""Measures the machine that it runs on, and writes what it found as a cluster for the simulator: conf/cluster/*.yaml.

python -m zbench.calibrate --nodes 2 --gpus-per-node 2 -o conf/cluster/mine.yaml. See docs/calibrate.md.
"""
