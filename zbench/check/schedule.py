"""The command `zbench check schedule FILE.json contract=NAME ranks=N`: whether an engine could run a schedule."""

from collections.abc import Sequence
from typing import Any

from zbench.check.settings import split_settings, whole_number
from zbench.console.console import say
from zbench.console.sentence import not_among
from zbench.contracts.check import check_schedule
from zbench.contracts.contract import CONTRACTS, Contract, contract_named
from zbench.contracts.schedule import ContractError, Schedule, TokenPermutation
from zbench.contracts.schedule_file import read_schedule
from zbench.describe.units import with_noun

_KEYS = ("contract", "ranks", "max_tokens", "least", "multiple", "equal_size")
_OF = "zbench check schedule"
_MOST = 2**40


def check_file(words: Sequence[str]) -> int:
    """Checks the schedule of a file and says what it is, or the first rule it breaks; returns the exit code.

    Raises:
        ValueError: a word is missing or wrong, or the file holds no schedule.
    """
    named = [word for word in words if "=" not in word]
    if len(named) != 1:
        raise ValueError(f"{_OF} has {', '.join(named) or 'no file'}; it takes one FILE.json (docs/contracts.md)")
    given = split_settings(words, _KEYS, _OF)
    contract = _contract(given)
    asked = " ".join([given["contract"], *(f"{key}={given[key]}" for key in _KEYS[1:] if key in given)])
    schedule = read_schedule(named[0], contract.ranks)
    try:
        check_schedule(schedule, contract)
    except ContractError as error:
        say(f"{named[0]} breaks {asked}: {error}")
        return 1
    say(f"{named[0]} keeps to {asked}: {_told(schedule)}")
    return 0


def _contract(given: dict[str, str]) -> Contract:
    for key, takes in (("contract", " or ".join(CONTRACTS)), ("ranks", "a whole number")):
        if key not in given:
            raise ValueError(f"{_OF} has no {key}; it takes {key}={takes}")
    if given["contract"] not in CONTRACTS:
        raise ValueError(not_among("contract", given["contract"], CONTRACTS))
    keys: dict[str, Any] = {
        key: whole_number(key, given[key], _MOST) for key in ("max_tokens", "least", "multiple") if key in given
    }
    if "equal_size" in given:
        if given["equal_size"] not in ("true", "false"):
            raise ValueError(f"equal_size is {given['equal_size']!r}; it takes true or false")
        keys["equal_size"] = given["equal_size"] == "true"
    return contract_named(given["contract"], whole_number("ranks", given["ranks"], 2**20), keys)


def _told(schedule: Schedule) -> str:
    if isinstance(schedule, TokenPermutation):
        return f"{with_noun(len(schedule.lengths), 'document')}, {with_noun(sum(schedule.lengths), 'token')}"
    count, tokens = len(schedule.micro_batches), sum(schedule.lengths.values())
    samples = with_noun(len(schedule.lengths), "sample")
    return f"{with_noun(count, 'micro-batch')}, {samples}, {with_noun(tokens, 'token')}"
