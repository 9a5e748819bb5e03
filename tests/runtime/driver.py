"""A driver for tests to start and to kill: prints its fork server, launcher, ranks and modules; then loops."""

import sys

from zbench.runtime.processes.launch import LocalFleet

with LocalFleet(2, "dummies:Summer", timeout=20.0) as fleet:
    print(fleet.server_pid, fleet.launcher_pid, *fleet.pids, "torch" in sys.modules, flush=True)
    fleet.call("loop")
