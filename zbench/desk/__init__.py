"""The desk cluster: ranks on emulated nodes of one Linux machine, with real, rate-limited NICs. Linux only."""
