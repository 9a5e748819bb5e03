"""The contracts: what an engine takes, as data. Pure.

A contract says which schedules an engine runs; zbench.contracts.check holds a schedule to it, zbench.contracts.bound
says what it costs at least, and systems/in_contract plans inside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from zbench.describe.checks import check_boolean, check_whole_number


@dataclass(frozen=True, slots=True)
class AlignedPow2Rings:
    """Megatron-LM's dynamic context parallelism: in every micro-batch groups of consecutive ranks, each with one pack
    that a ring runs. A group is all ranks, or a power of two of them that begins at a multiple of its size; no rank is
    without a sample.

    ranks: data parallel x context parallel. max_tokens: of a rank in a micro-batch at most
    (max_seqlen_per_dp_cp_rank); None: no limit but memory. least: ranks of a group at least (min_cp_size). multiple:
    the number of micro-batches is one of it, and groups do not grow along the ranks if it is above 1
    (microbatch_group_size_per_vp_stage).

    Raises:
        ValueError: a key has no such value.
    """

    ranks: int
    max_tokens: int | None = None
    least: int = 1
    multiple: int = 1

    def __post_init__(self) -> None:
        check_whole_number("contract.ranks", self.ranks, 1)
        check_whole_number("contract.max_tokens", self.max_tokens, 1, or_null=True)
        check_whole_number("contract.least", self.least, 1, self.ranks)
        check_whole_number("contract.multiple", self.multiple, 1)


@dataclass(frozen=True, slots=True)
class AnyRings:
    """Rings of any size: as AlignedPow2Rings, with groups of any number of consecutive ranks, wherever they begin.

    Keys are those of AlignedPow2Rings.

    Raises:
        ValueError: a key has no such value.
    """

    ranks: int
    max_tokens: int | None = None
    least: int = 1
    multiple: int = 1

    def __post_init__(self) -> None:
        AlignedPow2Rings(self.ranks, self.max_tokens, self.least, self.multiple)


@dataclass(frozen=True, slots=True)
class WholeOnDP:
    """Whole samples to data-parallel ranks, as verl and slime deal them: every micro-batch gives every rank a pack of
    its own, none is without a sample.

    ranks: data-parallel ones (each may be a static group of GPUs). equal_size: every rank has as many samples over all
    micro-batches. max_tokens: of a pack at most; None: no limit but memory. multiple: the number of micro-batches is
    one of it.

    Raises:
        ValueError: a key has no such value.
    """

    ranks: int
    equal_size: bool = False
    max_tokens: int | None = None
    multiple: int = 1

    def __post_init__(self) -> None:
        check_boolean("contract.equal_size", self.equal_size)
        AlignedPow2Rings(self.ranks, self.max_tokens, 1, self.multiple)


@dataclass(frozen=True, slots=True)
class EqualTokenPermutation:
    """A permutation of one pack's tokens, of which every rank owns as many in a row, as PyTorch's context parallelism
    takes it; keys and values are gathered from all ranks.

    ranks: of the context-parallel group.

    Raises:
        ValueError: ranks is no whole number of at least 1.
    """

    ranks: int

    def __post_init__(self) -> None:
        check_whole_number("contract.ranks", self.ranks, 1)


RingContract: TypeAlias = AlignedPow2Rings | AnyRings
Contract: TypeAlias = AlignedPow2Rings | AnyRings | WholeOnDP | EqualTokenPermutation
CONTRACTS: Mapping[str, type[Contract]] = {
    "aligned_pow2_rings": AlignedPow2Rings,
    "any_rings": AnyRings,
    "whole_on_dp": WholeOnDP,
    "equal_token_permutation": EqualTokenPermutation,
}


def contract_named(name: str, ranks: int, keys: Mapping[str, Any] | None = None) -> Contract:
    """Returns the contract of that name in CONTRACTS, for so many ranks. keys: its others.

    Raises:
        ValueError: there is no such contract or key, or a key has no such value.
    """
    if name not in CONTRACTS:
        raise ValueError(f"contract is {name!r}; it takes one of {', '.join(CONTRACTS)}")
    known = [field.name for field in fields(CONTRACTS[name]) if field.name != "ranks"]
    if wrong := [key for key in keys or {} if key not in known]:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise ValueError(f"{wrong[0]} is no key of contract {name}; {takes}")
    return CONTRACTS[name](ranks, **(keys or {}))


def contract_name(contract: Contract) -> str:
    """Returns the name that CONTRACTS has a contract by."""
    return next(name for name, kind in CONTRACTS.items() if type(contract) is kind)
