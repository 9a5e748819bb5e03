"""Contracts by name, and what their keys take."""

from typing import Any

import pytest

from zbench.contracts.contract import CONTRACTS, AlignedPow2Rings, WholeOnDP, contract_name, contract_named


@pytest.mark.parametrize("name", CONTRACTS)
def test_contracts_have_names(name: str) -> None:
    made = contract_named(name, 8)
    assert contract_name(made) == name
    assert made.ranks == 8


def test_keys_are_the_contract_s() -> None:
    assert contract_named("aligned_pow2_rings", 8, {"max_tokens": 5, "multiple": 2}) == AlignedPow2Rings(8, 5, 1, 2)
    assert contract_named("whole_on_dp", 4, {"equal_size": True}) == WholeOnDP(4, equal_size=True)


@pytest.mark.parametrize(
    ("name", "ranks", "keys", "told"),
    [
        ("rings", 8, {}, "contract is 'rings'; it takes one of aligned_pow2_rings, any_rings"),
        ("any_rings", 0, {}, "contract.ranks is 0"),
        ("any_rings", 8, {"max_tokens": 0}, "contract.max_tokens is 0"),
        ("any_rings", 8, {"least": 9}, "contract.least is 9; it takes a whole number from 1 to 8"),
        ("whole_on_dp", 8, {"equal_size": 1}, "contract.equal_size is 1"),
        ("whole_on_dp", 8, {"least": 1}, "least is no key of contract whole_on_dp; it takes equal_size, max_tokens"),
        ("equal_token_permutation", 8, {"least": 1}, "it takes none"),
        ("equal_token_permutation", "8", {}, "contract.ranks is '8'"),
    ],
)
def test_what_cannot_be_is_a_sentence(name: str, ranks: Any, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        contract_named(name, ranks, keys)
