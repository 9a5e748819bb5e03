"""The frame of a command of zbench's own (python -m zbench.NAME): options, mistakes told in one sentence. An edge."""

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from zbench.sentence import is_stop, sentence


class Parser(argparse.ArgumentParser):
    """Tells a mistake in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see --help)")


def ran(work: Callable[[], int], stopped: str) -> int:
    """What work() returns; else the exit code of what went wrong, which is told. stopped: what Ctrl-C has left."""
    try:
        return work()
    except (Exception, KeyboardInterrupt) as error:
        if is_stop(error):
            print(f"zbench: stopped; {stopped}", file=sys.stderr)
            return 130
        told = sentence(error)
        if told is None:
            raise
        print(f"zbench: {told[0]}", file=sys.stderr)
        return told[1]
