"""The frame of every command (python -m zbench.NAME): options, signals, streams, sentences for mistakes. An edge.

    with loading(__name__):
        import numpy as np  # and all else that takes a while

    def main() -> int:
        return ran(_main, "what a stop leaves, in words")

    if __name__ == "__main__":
        sys.exit(main())

Exit codes: that of the work; 1 it failed; 2 bad input; 130 stopped by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP. An error
of the program's own, or any with HYDRA_FULL_ERROR=1, shows its traceback. Imports nothing that takes a while.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from typing import NoReturn

from zbench.console.elastic import tell
from zbench.console.heap import keep_freed_memory
from zbench.console.signals import exit_code, leave_at_once, raised, stop_in
from zbench.console.streams import finish, wrap_streams

SETTINGS = "KEY=VALUE"  # how a command calls its settings
UNKNOWN = "unrecognized arguments: "  # argparse's words
FULL = "HYDRA_FULL_ERROR"  # in the environment: 1 shows tracebacks of errors that a sentence tells


class Parser(argparse.ArgumentParser):
    """A parser of options that tells a mistake in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raises ValueError with argparse's message, so that it is told in one sentence.

        Argparse counts settings, of which there may be none, among what is missing; and where options may stand among
        other words it calls all of these unknown as soon as it does not know an option.
        """
        message = message.replace(f", {SETTINGS}", "")
        if message.startswith(UNKNOWN):
            words = message.removeprefix(UNKNOWN).split()
            message = UNKNOWN + " ".join([word for word in words if word.startswith("-")] or words)
        raise ValueError(f"{message} (see --help)")


def known_words(flag: str, given: str, known: Collection[str]) -> list[str]:
    """Returns the words of a flag, which commas separate.

    Raises:
        ValueError: one of them is not known; the message names the flag, the word and what the flag takes.
    """
    words = given.split(",")
    if wrong := [word for word in words if word not in known]:
        raise ValueError(f"{flag} has {wrong[0]!r}; it takes {', '.join(known)}")
    return words


@contextlib.contextmanager
def loading(name: str) -> Iterator[None]:
    """Frames the imports of a command, and makes its process ready for any signal, and any standard output and error,
    and keep the memory that its arrays free.

    Does nothing where the command's module is itself imported (name is not "__main__").
    """
    if name == "__main__":
        leave_at_once()
        wrap_streams()
        keep_freed_memory()
    yield


def ran(work: Callable[[], int], stopped: str | Callable[[], str]) -> int:
    """Runs `work` and returns what it returns; else the exit code of what went wrong, which is told. stopped: what a
    stop has left."""
    try:
        with raised():
            try:
                code = work()
            except SystemExit:  # --help
                finish()
                raise
            finish()
            return code
    except (Exception, KeyboardInterrupt) as error:
        if stop := stop_in(error):
            tell_user(f"stopped; {stopped if isinstance(stopped, str) else stopped()}")
            return exit_code(stop)
        from zbench.console.sentence import sentence

        told = None if os.environ.get(FULL) == "1" else sentence(error)
        if told is None:
            raise
        tell_user(told[0])
        return told[1]


def tell_user(words: str) -> None:
    """Tells the user a sentence on stderr, and torchrun, which prints it last."""
    print(f"zbench: {words}", file=sys.stderr, flush=True)
    tell(os.environ, words)
