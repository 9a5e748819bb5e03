"""Settings of the command's own words: KEY=VALUE, by group, and files of lengths."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from zbench.api.functions import checked_lengths
from zbench.console.command import Parser
from zbench.describe.arrays import Ints
from zbench.record.renamed import old_choice
from zbench.workloads.read_lengths import read_lengths

Keys = dict[str, Any]


def command_settings(
    words: Sequence[str], groups: Sequence[str], keyless: Sequence[str], command: str
) -> tuple[dict[str, str], dict[str, Keys]]:
    """Returns (the choice of every group that has one, changed keys of every group that has keys). keyless: those of
    the groups that have none.

    Raises:
        ValueError: a word is of no group.
    """
    chosen: dict[str, str] = {}
    keys: dict[str, Keys] = {group: {} for group in groups}
    for word in words:
        key, equals, value = word.partition("=")
        group, dot, inner = key.partition(".")
        if not equals or group not in groups or (dot and group in keyless):
            if told := old_choice(key, value):
                raise ValueError(told)
            takes = "=, ".join(groups)
            raise ValueError(
                f"{word!r} is no setting of {command}; it takes {takes}=, and keys such as {groups[0]}.KEY=VALUE"
            )
        if dot:
            keys[group][inner] = yaml_value(value)
        else:
            chosen[group] = value
    return chosen, keys


def yaml_value(word: str) -> Any:
    """Returns the value that a yaml would have of a word: a number, true, null, a list or text."""
    return OmegaConf.select(OmegaConf.from_dotlist([f"value={word}"]), "value")


def lengths_parser(prog: str, description: str, files: Mapping[str, str], settings: str) -> Parser:
    """Returns the parser of a command that takes files of lengths and settings KEY=VALUE. files: what each has lengths
    of, by its metavar. settings: help."""
    parser = Parser(prog=prog, description=description)
    for metavar, what in files.items():
        told = f"{what}, one length a line (.txt), or .npy, .npz, .jsonl, .parquet"
        parser.add_argument(metavar.lower(), metavar=metavar, help=told)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help=settings)
    return parser


def lengths_of_file(path: str, argument: str) -> Ints:
    """Reads lengths, int64 [num_sequences], as the workload lengths_file does. argument: of the command, of which it is
    told what is wrong, and not of the workload's key.

    Raises:
        ValueError: there is no such file, or it does not hold lengths.
    """
    try:
        return checked_lengths(read_lengths(path, "length"))
    except ValueError as error:
        told_of_key = str(error).replace(" (workload.path=FILE)", "")
        raise ValueError(told_of_key.replace("workload.path is", f"{argument} is")) from error


def titled(name: str, keys: Keys) -> str:
    """Returns the name of a cluster or a model with the keys that were changed, as a table's title has it."""
    changed = ", ".join(f"{key}={value}" for key, value in keys.items())
    return f"{name} ({changed})" if changed else name
