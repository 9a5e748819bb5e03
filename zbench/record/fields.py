"""The fields of a record's lines, what each of them takes, and what is wrong with a line that has something else. Pure.

Readers rely on nothing else: whatever a line holds besides is handed on or shown as it is. Numbers have bounds, so that
no sum, ratio or square of them leaves what a float can hold.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zbench.interfaces.result import SECONDS_FOR
from zbench.record.flops import Facts

LEAST, MOST = 1e-30, 1e30  # of numbers that are not 0
_LONGEST = 60  # characters of a value that are shown
_MISSING = object()


@dataclass(frozen=True, slots=True)
class FieldKind:
    """A kind of values that a field takes.

    each: of the elements of a list, or of the values of an object. quick: whether all of them hold, where there is a
    faster way to tell than one by one.
    """

    words: str
    holds: Callable[[Any], bool]
    each: "FieldKind | None" = None
    quick: Callable[[Any], bool] = lambda _: False

    def fault(self, name: str, value: Any) -> str | None:
        """Returns what is wrong with the value of the field `name`; None where it is of this kind."""
        if not self.holds(value):
            return f"{name} is {shortened(value)}; it takes {self.words}"
        if self.each is None or value in (None, _MISSING) or self.quick(value):
            return None
        found = value.items() if isinstance(value, Mapping) else enumerate(value)
        faults = (self.each.fault(f"{name}[{key!r}]", one) for key, one in found)
        return next((told for told in faults if told is not None), None)

    @property
    def nullable(self) -> "FieldKind":
        """This kind, or null."""
        return replace(self, words=f"{self.words}, or null", holds=lambda value: value is None or self.holds(value))

    @property
    def optional(self) -> "FieldKind":
        """This kind, or a field that is not there."""
        return replace(self, holds=lambda value: value is _MISSING or self.holds(value))


def shortened(value: Any) -> str:
    """Returns a value for a sentence, cut where it is long."""
    if value is _MISSING:
        return "missing"
    return cut_short(repr(value))


def cut_short(text: str) -> str:
    """Returns a text for a sentence, cut where it is long."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def line_fault(line: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with a line whose kind is known; None for a whole one."""
    faults = (kind.fault(name, _at(line, name)) for name, kind in FIELDS[line["kind"]].items())
    return next((told for told in faults if told is not None), None)


def _at(line: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a name with dots; objects on the way have been looked at before."""
    value: Any = line
    for part in name.split("."):
        value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and (value == 0 or LEAST <= abs(value) <= MOST)


def _number(low: float, whole: bool = False) -> FieldKind:
    """Makes the kind of numbers from `low` to MOST."""
    types = (int,) if whole else (int, float)
    words = f"a {'whole ' * whole}number {'above 0' if low == LEAST else f'of at least {low:g}'} (at most {MOST:g})"
    return FieldKind(words, lambda value: type(value) in types and _is_number(value) and value >= low)


def _list(each: FieldKind, least: int = 1, quick: Callable[[Any], bool] = lambda _: False) -> FieldKind:
    words = f"a list{' that is not empty' if least else ''}, each of it {each.words}"
    return FieldKind(words, lambda value: isinstance(value, list) and len(value) >= least, each, quick)


def _object(each: FieldKind, *keys: str) -> FieldKind:
    """Makes the kind of objects whose values are of one kind. keys: what it has to have."""
    needed = f" with {', '.join(keys)}" if keys else ""
    words = f"an object{needed}, each value {each.words}"
    return FieldKind(words, lambda value: isinstance(value, dict) and set(keys) <= value.keys(), each)


def _are_amounts(values: list[Any]) -> bool:
    """Tests what AMOUNT tests of each, but fast: a step of a thousand ranks has thousands."""
    return (
        {type(value) for value in values} <= {int, float}
        and max(values) <= MOST
        and all(value >= LEAST or value == 0 for value in values)
    )


ANY = FieldKind("anything", lambda _: True)
TEXT = FieldKind("text", lambda value: isinstance(value, str))
FLAG = FieldKind("true or false", lambda value: isinstance(value, bool))
OBJECT = FieldKind("an object", lambda value: isinstance(value, dict))
NUMBER, AMOUNT, POSITIVE = FieldKind(f"a number (at most {MOST:g})", _is_number), _number(0), _number(LEAST)
_SHARE = FieldKind("a share from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
WHOLE, COUNT = _number(0, whole=True), _number(1, whole=True)
AMOUNTS, SERIES = (
    _list(AMOUNT, quick=_are_amounts),
    _list(_list(AMOUNT, 0, lambda value: not value or _are_amounts(value))),
)
STATUS = FieldKind("finished, interrupted or failed", lambda value: value in ("finished", "interrupted", "failed"))
_SAMPLED = _object(ANY, "interval", "tx", "rx")
PARTS = FieldKind(
    f"an object of lists, by names of {', '.join(SECONDS_FOR)}",
    lambda value: isinstance(value, dict) and value.keys() <= set(SECONDS_FOR),
    AMOUNTS,
)
_ITERATION = (
    "seconds", "tokens", "waited_seconds", "generation_imbalance", "response_tokens", "given_up_tokens",
    "off_policy_tokens", "policy_age",
)  # fmt: skip
ITERATION = FieldKind(
    f"{{}} or {_object(ANY, *_ITERATION).words}", lambda value: value == {} or _object(ANY, *_ITERATION).holds(value)
)
SAMPLES = FieldKind(f"{{}} or {_SAMPLED.words}", lambda value: value == {} or _SAMPLED.holds(value))

FIELDS: Mapping[str, Mapping[str, FieldKind]] = {
    "start": {
        "run": TEXT,
        "time": TEXT,
        "command": TEXT.nullable.optional,
        "config": OBJECT,
        "config.steps": COUNT,
        "config.trace": TEXT.nullable.optional,
        "config.choices": _object(TEXT.nullable).optional,
        "config.changes": _object(OBJECT).optional,
        "baseline": _object(ANY, "name", "system").nullable.optional,
        "chosen": _object(ANY, "model", "keys", "words").nullable.optional,
        "fingerprint": OBJECT,
        "fingerprint.sources": TEXT,
        "fingerprint.commit": TEXT.nullable.optional,
        "facts": OBJECT,
        "facts.simulated": FLAG,
        **dict.fromkeys(("facts.cluster", "facts.device"), TEXT),
        **dict.fromkeys(("facts.num_nodes", "facts.gpus_per_node", "facts.nics_per_node"), COUNT),
        **{f"facts.{name}": _number(1) for name in Facts.__dataclass_fields__},
        "facts.num_gpus": COUNT.optional,  # older records tell it otherwise (zbench.record.older)
        "facts.embedding_params": AMOUNT,
        "facts.routed_params": AMOUNT.optional,  # without it, no tokens were dropped
        "facts.context_limit": _number(1).nullable,
        "facts.tensor_parallel": COUNT.optional,
        "facts.chosen_layers_fit": FLAG.optional,  # false where no open numbers of layers fit; without it, true
        "facts.num_tensor_parallel_groups": COUNT.optional,  # with tensor_parallel above 1
        "facts.links": TEXT.optional,  # domains and channels that are not the usual ones; without it, none
        "facts.synchronous": FLAG.optional,  # false where workers come together in rounds; without it, true
        "facts.world": TEXT.optional,  # what is changed of the machine; without it, nothing
    },
    "about": {"run": TEXT},
    "step": {
        "run": TEXT,
        "batch": TEXT,
        "step": WHOLE,
        **dict.fromkeys(("tokens", "sum_squared", "max_length", "seconds", "bound_seconds"), POSITIVE),
        "counted_labels": COUNT.optional,  # without it, those of all tokens
        "pairs": COUNT.optional,  # visible ones, of masks that are not causal
        **dict.fromkeys(("plan_seconds", "capacity_bytes"), AMOUNT),
        **dict.fromkeys(("attention_seconds", "linear_seconds", "communication_seconds", "exposed_seconds"), AMOUNTS),
        **dict.fromkeys(("nic_tx_bytes", "nic_rx_bytes", "peak_bytes"), AMOUNTS),
        "ceiling_seconds": POSITIVE.nullable.optional,  # older records have none
        "exposed_nic_seconds": AMOUNTS.nullable.optional,
        **dict.fromkeys(("host_bytes", "store_bytes"), _list(AMOUNT, 0).optional),
        "out_of_memory": FLAG,
        "valid": FLAG.optional,
        "loss": NUMBER.nullable.optional,
        **dict.fromkeys(("num_sequences", "num_micro_batches", "num_transfers", "nvlink_bytes"), AMOUNT.optional),
        **dict.fromkeys(("phases", "checks", "expert_rows"), _object(NUMBER).optional),
        **{f"expert_rows.{name}": _SHARE.optional for name in ("dropped", "padded")},
        "expert_rows.kept": AMOUNT.optional,
        **dict.fromkeys(("expert_chunks", "exchange_slices", "recompute"), OBJECT.optional),
        **{f"expert_chunks.{name}": COUNT.optional for name in ("forward", "backward")},
        "expert_chunks.gradients": _object(ANY, "inside", "beside", "count").optional,
        "exchange_slices.slices": COUNT.optional,
        "recompute.level": TEXT.optional,
        "recompute.layers": _list(WHOLE).optional,
        "recompute.of_layers": COUNT.optional,
        "octaves": _object(AMOUNTS).optional,
        "plan_notes": _list(OBJECT).optional,
        "rollouts": ITERATION.optional,
        **{f"rollouts.{name}": _object(AMOUNT).optional for name in ("seconds", "tokens", "layouts")},
        **{f"rollouts.{name}": AMOUNT.optional for name in _ITERATION[2:]},
        "trace": _object(TEXT, "file", "digest").nullable.optional,
        "nic_tx_for": _object(AMOUNTS).optional,
        "seconds_for": PARTS.optional,
        "nic_series": SAMPLES.nullable.optional,
        "nic_series.interval": POSITIVE.optional,
        **dict.fromkeys(("nic_series.tx", "nic_series.rx"), SERIES.optional),
    },
    "end": {
        "run": TEXT,
        "status": STATUS,
        "message": TEXT.optional,
        **{name: _object(ANY, "seconds").optional for name in ("first_step", "last_update")},
        **{f"{name}.seconds": AMOUNT.optional for name in ("first_step", "last_update")},
        "last_update.bytes": _object(AMOUNT).optional,
        "window": _object(WHOLE, "step", "fits").optional,
    },
}
# Lists of the same ranks, or NICs, which are as long as each other; those of NICs in every step of a run.
ALIKE = (("attention_seconds", "linear_seconds", "exposed_seconds"), ("nic_tx_bytes", "nic_rx_bytes"))
