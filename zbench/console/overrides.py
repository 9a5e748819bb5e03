"""Settings of the command line that hydra cannot read or reads as something else, told in a sentence. Pure.

Its grammar keeps ( ) [ ] { } , = and quotes for itself, so a value with one of them has to be quoted for hydra, and
that for the shell again: "out='runs(1).jsonl'".
"""

import re
from collections.abc import Iterable, Sequence

from zbench.describe.strategies.strategy_keys import MODEL_KEYS

BASELINE_KEYS = "baseline_system"  # what a run changes of its baseline's yaml
_OF_MODEL = re.compile(rf"\+?(?=model\.({'|'.join(sorted(MODEL_KEYS))})=)")  # before such a key
_KEY = re.compile(r"[+~]*[A-Za-z_][\w./@:-]*")


def unreadable(override: str) -> str:
    """Returns what to tell about a setting that the grammar refuses."""
    override = as_typed(override)
    key, equals, value = override.partition("=")
    if not equals or not _KEY.fullmatch(key):
        return f"{override!r} cannot be read; settings are written key=value"
    example = quoted(key, value)
    if value.endswith(",") and re.fullmatch(r"[\w.,-]+", value):
        return f"{override!r} cannot be read; several values are written as in -m {key}=1,2, without a comma at the end"
    if value.startswith(("[", "{")):
        return f"{override!r} cannot be read; lists are written {key}=[a,b], and text with brackets as in {example}"
    if value.count("'") % 2 or value.count('"') % 2:
        return f"{override!r} cannot be read; a quote is not closed, or has to be quoted itself: {example}"
    return f"{override!r} cannot be read; a value with such characters has to be quoted, as in {example}"


def several(argument: str) -> str:
    """Returns what to tell about a setting with commas in a command that is no sweep."""
    argument = as_typed(argument)
    key, _, value = argument.partition("=")
    is_words = re.fullmatch(r"[\w,-]+", value) is not None  # choices or numbers; anything else may be a file's name
    comma = "" if is_words else f", or quote a value that has commas: {quoted(key, value)}"
    return f"{argument} names several values; add -m to run each of them in turn{comma}"


def added(argument: str) -> str:
    """Returns a setting as hydra takes it, where it is a key of the baseline's system, or one that any model has.

    Which keys the first has is known when it is composed, apart from the run's own (zbench.run.request); the
    configuration's own baseline_system is empty, and hydra sets no key that is not there unless it is told to add it. A
    model's yaml leaves keys out that are as usual, and one says no other keys than another for all that.
    """
    if re.match(rf"{BASELINE_KEYS}[.=]", argument):
        return f"++{argument}"
    of_model = _OF_MODEL.match(argument)
    return f"++{argument[of_model.end() :]}" if of_model else argument


def as_typed(argument: str) -> str:
    """Returns a setting as the user typed it, or without the + of a model's key, of what `added` made of it."""
    bare = argument.removeprefix("++")
    return bare if bare.startswith(BASELINE_KEYS) or _OF_MODEL.match(bare) else argument


def of_swept_groups(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments of a sweep, with each key of a group that is swept itself, as in sync=co2,slowmo
    sync.steps=4, written as a sweep of one value.

    Hydra composes a sweep once without what is swept, where such a key would be one of the group's usual choice and
    refused if that has none. What is swept it sets in each job alone.
    """
    swept = {
        word.partition("=")[0] for word in arguments if re.fullmatch(r"[A-Za-z_]\w*=[\w.-]+(,[\w.-]+)+", word.strip())
    }
    keys = [re.fullmatch(r"([A-Za-z_]\w*)(\.\w+)+=([\w./+-]+)", word) for word in arguments]
    return [
        f"{word.partition('=')[0]}=choice({key[3]})" if key is not None and key[1] in swept else word
        for word, key in zip(arguments, keys, strict=True)
    ]


def check_choices(overrides: Iterable[str], groups: Iterable[str]) -> None:
    """Refuses a list, keys or null for a group: hydra would put a list's members one over another, which is no run of
    any of them, and would not tell which group is null.

    Raises:
        ValueError: one of `overrides` (as written on the command line) gives a list, keys or null to one of
            `groups`, or to a group inside one of them, as cluster/device is.
    """
    groups = set(groups)
    for override in overrides:
        key, _, value = override.partition("=")
        name, value = key.lstrip("+").partition("@")[0], value.strip()
        if "/" not in name and name not in groups:
            continue
        if value.startswith("{") or value.lower() == "null":
            raise ValueError(f"{name} is {value}; it takes the name of one of its choices (see --help)")
        if value.startswith("["):
            members = [part.strip() for part in value.strip("[]").split(",")]
            several = f"-m {name}={','.join(members)} runs each of them in turn"
            one = f"as in {name}={members[0]}"  # an experiment may be a sweep itself, and is not swept over
            raise ValueError(
                f"{name} is {value}, a list; it takes one name, {one if name == 'experiment' else f'and {several}'}"
            )


def quoted(key: str, value: str) -> str:
    """Returns a setting as it is typed in a shell, so that hydra takes all of `value` as one text."""
    mark = '"' if "'" in value and '"' not in value else "'"
    inner = value.replace(mark, f"\\{mark}")
    text = re.sub(r'([\\"$`])', r"\\\1", f"{key}={mark}{inner}{mark}")
    return f'"{text}"'
