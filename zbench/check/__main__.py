"""The command `zbench check loss|attention MODULE:FUNCTION` or `schedule FILE`: whether other people's pieces are
exact. An edge.

Exit codes: 0 everything is exact; 1 something is not; 2 bad input; 130 stopped by Ctrl-C.
"""

import sys

from zbench.console.command import loading, ran

with loading(__name__):
    from collections.abc import Callable, Sequence

    from zbench.check.schedule import check_file
    from zbench.console.extras import need
    from zbench.console.sentence import not_among

USAGE = """\
zbench check loss WHAT [KEY=VALUE ...]         a loss over tokens against the dense one, with gradients
zbench check attention WHAT [KEY=VALUE ...]    attention over packed documents against dense attention, with gradients
zbench check schedule FILE.json contract=NAME ranks=N [max_tokens=N] [least=N] [multiple=N] [equal_size=true]
                                               a schedule against the contract of an engine (docs/contracts.md)

WHAT is MODULE:FUNCTION, called as docs/check.md says, or the name of an adapter (loss: deepspeed, deepspeed_sum, torch,
torch_chunks, torch_linear; attention: torch_sdpa). Keys: case=NAME,NAME (default all), dtype=float64|float32|bfloat16,
device=cpu|cuda, ranks=N processes (default 1), over=mean|sum (how the losses of several processes make one), seconds=N
that a process may wait for the others.
Exit codes: 0 everything is exact, 1 something is not, 2 bad input."""
_HELP = ("-h", "--help")


def main() -> int:
    """Runs the command line and returns its exit code."""
    return ran(lambda: _main(sys.argv[1:]), "nothing was written")


def _main(words: Sequence[str]) -> int:
    if not words or any(word in _HELP for word in words):
        print(USAGE)
        return 0 if words else 2
    kinds: dict[str, Callable[[str, Sequence[str]], int]] = {
        "loss": _check_function,
        "attention": _check_function,
        "schedule": lambda _, rest: check_file(rest),
    }
    if words[0] not in kinds:
        raise ValueError(not_among("zbench check", words[0], kinds))
    return kinds[words[0]](words[0], words[1:])


def _check_function(kind: str, words: Sequence[str]) -> int:
    need("torch", f"zbench check {kind}")
    from zbench.check.check import check_function, print_verdicts
    from zbench.check.jobs import read_job

    job = read_job(kind, words)
    verdicts = check_function(job)
    print_verdicts(verdicts, job)
    return 0 if any(one.exact for one in verdicts) and not any(one.failed for one in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
