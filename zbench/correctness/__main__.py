"""python -m zbench.correctness [SUBCOMMAND] ...: checks that what is computed is right. An edge.

Without a subcommand: what a device computes (zbench.correctness.devices). Exit codes: 0; 1 something is not right;
2 bad input; 130 stopped by Ctrl-C.
"""

import sys

from zbench.console.command import loading, ran

with loading(__name__):
    from importlib import import_module

DEVICES = ("zbench.correctness.devices", "what was found is in the file, and the same command goes on")
# Name: (module with `main(arguments) -> int`, what Ctrl-C has left). Modules are imported when they are asked for.
SUBCOMMANDS = {
    "loop": ("zbench.correctness.loop.command", "the table is of what was compared until then"),
    "matrix": ("zbench.correctness.matrix", "the table is of what was finished until then"),
    "mutate": ("zbench.correctness.mutate", "the tables are of what was judged until then"),
    "peers": ("zbench.correctness.peers.command", "the table is of what was trained until then"),
    "reshard": ("zbench.correctness.reshard.command", "the table is of what was brought until then"),
    "rounds": ("zbench.correctness.rounds", "what is told is of what was played until then"),
    "seesaw": ("zbench.correctness.seesaw.command", "the table is of what was generated until then"),
    "steps": ("zbench.correctness.steps.command", "the table is of what was executed until then"),
}


def main() -> int:
    """Runs the subcommand that the arguments name, and returns the exit code."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if name and name not in SUBCOMMANDS:
        return ran(lambda: _unknown(name), "nothing was run")
    module, stopped = SUBCOMMANDS.get(name, DEVICES)
    return ran(lambda: int(import_module(module).main(arguments[bool(name) :])), stopped)


def _unknown(name: str) -> int:
    raise ValueError(
        f"{name!r} is no subcommand of zbench.correctness; it takes {', '.join(SUBCOMMANDS)}, or flags only"
    )


if __name__ == "__main__":
    sys.exit(main())
