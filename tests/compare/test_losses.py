"""Loss curves: means of windows, intervals over seeds, and what is not told."""

import math

import pytest

from tests.record.test_rows import MINE, run_of, start
from zbench.compare.losses import losses
from zbench.record.record import Run


def trained(run: str, sync: str, seed: int, values: dict[int, float | None]) -> Run:
    choices = {"system": "mine", "sync": sync}
    found = run_of(start(run, MINE, choices=choices, changes={}, seed=seed), *([1.0] * len(values)))
    for line, (step, loss) in zip(found.steps, values.items(), strict=True):
        line["step"], line["loss"] = step, loss
    return found


def curve(offset: float) -> dict[int, float | None]:
    return {0: 4.0 + offset, 1: 3.0 + offset, 2: 2.0 + offset, 3: 1.0 + offset, 4: 0.5}


def test_seeds_have_an_interval_and_other_runs_a_column_of_their_own() -> None:
    runs = [trained(f"a{seed}", "slowmo", seed, curve(seed)) for seed in range(3)]
    told = losses([*runs, trained("b", "diloco", 0, curve(0.25))], 2).splitlines()
    half = 4.302652729911275 / math.sqrt(3)  # Student's t of three values that are 0, 1 and 2 beside their mean
    assert told[2:] == [
        "| steps | slowmo | diloco |",
        "|---|---|---|",
        f"| 1 to 2 | 4.500 ± {half:.3f} | 3.750 (1 seed) |",
        f"| 3 to 4 | 2.500 ± {half:.3f} | 1.750 (1 seed) |",
        "| tokens/s | 100 | 100 |",
    ]  # the fifth step is no window
    assert "system mine" in told[0]
    assert "sync" not in told[0]
    changed = trained("c", "diloco", 0, curve(0.5))
    changed.start["config"]["changes"] = {"sync": {"lr": 0.5}}
    assert (
        losses([trained("b", "diloco", 0, curve(0.0)), changed], 4).splitlines()[2]
        == "| steps | diloco | diloco lr=0.5 |"
    )


def test_a_run_that_went_on_is_one_and_gaps_are_not_told() -> None:
    first, second = trained("a", "co2", 5, {0: 3.0, 1: 2.0}), trained("b", "co2", 5, {1: 1.0, 2: 4.0})
    second.steps[-1]["seconds"] = 3.0
    assert losses([first, second], 2).splitlines()[-2:] == ["| 1 to 2 | 2.000 (1 seed) |", "| tokens/s | 60 |"]
    assert losses([first, second], 1).splitlines()[-2] == "| 3 to 3 | 4.000 (1 seed) |"
    second.start["config"]["changes"] = {"executor": {"checkpoint_every": 2}}
    assert losses([first, second], 2).splitlines()[-2] == "| 1 to 2 | 2.000 (1 seed) |"
    gap = trained("c", "slowmo", 5, {0: 3.0, 2: 4.0})
    assert losses([first, gap], 2).splitlines()[-2] == "| 1 to 2 | 2.500 (1 seed) | - |"


def test_what_has_no_losses_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^--losses is 2; no run here has losses, and it takes runs that train"):
        losses([trained("a", "co2", 0, {0: None})], 2)
    with pytest.raises(ValueError, match=r"^--losses is 0; it takes a whole number of at least 1"):
        losses([trained("a", "co2", 0, {0: 1.0})], 0)
