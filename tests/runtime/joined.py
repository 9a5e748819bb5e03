"""A program for tests to start under torchrun or with Slurm's variables: a joined fleet of Summers, and what happens.

python joined.py TIMEOUT [METHOD ARGUMENT...]: each argument read as JSON; prints what the call returns. Without a
method: two fleets, one after the other.
"""

import json
import os
import sys

from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.follow import follow
from zbench.runtime.processes.join import JoinedFleet, lead
from zbench.runtime.processes.world import found


def main() -> int:
    timeout, call = float(sys.argv[1]), sys.argv[2:]
    world = found(os.environ)
    assert world is not None
    if world.rank > 0:
        return follow(world)
    try:
        with lead(world):
            for number in range(1 if call else 2):
                with JoinedFleet(world, "dummies:Summer", number, timeout) as fleet:
                    print("up", [about["pid"] for about in fleet.call("about")], flush=True)
                    method, *arguments = call or ("total", "1.5")
                    print("result", fleet.call(method, *map(json.loads, arguments)), flush=True)
    except RankFailed as error:
        print(f"told: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
