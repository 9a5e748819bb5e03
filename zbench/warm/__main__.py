"""python -m zbench.warm: compiles the numerical kernels once, after installing."""

import sys

from zbench.console.command import Parser, loading, ran

with loading(__name__):
    from zbench import CONF
    from zbench.run.choices import NEEDS, choices
    from zbench.run.warm import SMALL, warm


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "what was compiled is kept")


def _main() -> int:
    """Warms every system of the project on the default cluster and model, and the clock of whole steps."""
    parser = Parser(prog="python -m zbench.warm", description="Compiles the numerical kernels once.")
    parser.add_argument("--backwards", action="store_true", help="the last first, beside another that goes forwards")
    backwards = parser.parse_args().backwards
    from hydra import compose, initialize_config_dir  # an edge, like the command line

    from zbench.run.parts import Parts
    from zbench.run.settings import Settings
    from zbench.run.system import make_system

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["tracker=none"])
        parts = Parts.of(config, Settings.of(config))
        names = [name for name in choices("system") if name not in NEEDS]  # others' code, which compiles nothing
        systems = {name: make_system(compose("config", [f"system={name}"]), parts.cost) for name in names}
        if backwards:  # planners first: the steps' kernels are what the other has begun with
            for name in reversed(names):
                print(f"compiling kernels for plans of {name}", file=sys.stderr)
                warm(systems[name], trains=True)
        for name, system in systems.items():
            print(f"compiling kernels for {name}", file=sys.stderr)
            warm(system, trains=True)
            parts.executor.step(SMALL, system.plan(SMALL))
        print("compiling kernels for whole steps", file=sys.stderr)
        config = compose("config", ["tracker=none", "executor=simulated"])
        whole = Parts.of(config, Settings.of(config))
        whole.executor.step(SMALL, make_system(compose("config", ["system=zeppelin"]), whole.cost).plan(SMALL))
    return 0


if __name__ == "__main__":
    sys.exit(main())
