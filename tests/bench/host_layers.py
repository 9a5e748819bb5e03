"""Numbers of layers that are recomputed and on hosts: the closed form's and a run's beside what the clock finds.

python -m tests.bench.host_layers [key=value ...]   # one batch; a minute or two; docs/memory/optimizer.md has the table

The closed form (zbench.simulated.host_layers) chooses, and its step is played; so is that of the run, which plans for
the closed form's candidates. Then a search by the clock begins at the better one:
each number that is open is moved by 8, 4, 2 and 1 layers as long as a step that fits by its account is quicker.
"""

import sys
from dataclasses import astuple, replace

from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulated.executor import Simulated
from zbench.simulated.host_layers import LayerCounts

USUAL = (
    "cluster=h100_4x8", "model=llama3_8b", "system=zeppelin", "sharding=zero3", "memory=zero_offload",
    "memory.loss_chunk_tokens=auto", "recompute=full",
)  # fmt: skip
OPEN = {"recompute.layers": 0, "memory.parameter_layers": 1, "memory.optimizer_layers": 2, "memory.carried_layers": 3}


def parts_of(words: list[str]) -> tuple[Parts, object]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [*USUAL, *words])
    return Parts.of(config, Settings.of(config)), config


class Clock:
    """Seconds of a step by the clock, and its account. infinite where it does not fit."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.known = words, dict[LayerCounts, tuple[float, float]]()

    def seconds(self, counts: LayerCounts) -> float:
        if counts not in self.known:
            self.known[counts] = self._played(counts)
        return self.known[counts][0]

    def _played(self, counts: LayerCounts) -> tuple[float, float]:
        parts, config = parts_of([*self.words, *words_of(counts, self.words)])
        assert isinstance(parts.executor, Simulated)
        batch = parts.batch(0)
        result = parts.executor.step(batch, make_system(config, parts.cost).plan(batch))
        gib = max(result.peak_bytes) / 2**30
        return (float("inf") if result.out_of_memory else result.seconds), gib


def words_of(counts: LayerCounts, words: list[str]) -> list[str]:
    """Words that set numbers."""
    found = (
        ["recompute=none", "recompute.layers=all"]
        if not counts.recomputed
        else [f"recompute.layers={counts.recomputed}"]
    )
    found.append(f"memory.parameter_layers={counts.parameters or 'none'}")
    if not counts.optimizer:
        return [*found, "memory.offload=none", "memory.optimizer_layers=all", "memory.host_updates=as_gradients_come",
                "memory.carried_layers=all"]  # fmt: skip
    found.append(f"memory.optimizer_layers={counts.optimizer}")
    if "memory.host_updates=across_steps" in words:
        carried = [f"memory.carried_layers={counts.carried}"]
        found += carried if counts.carried else ["memory.host_updates=as_gradients_come", "memory.carried_layers=all"]
    return found


def searched(clock: Clock, start: LayerCounts, places: list[int], most: LayerCounts) -> LayerCounts:
    """The best of a search by the clock from some numbers on. most: of each, as recomputed layers are a stage's."""
    best = start
    for stride in (8, 4, 2, 1):
        better = True
        while better:
            better = False
            for place in places:
                for move in (stride, -stride):
                    numbers = list(astuple(best))
                    numbers[place] = min(max(numbers[place] + move, 0), astuple(most)[place])
                    numbers[3] = min(numbers[3], numbers[2])
                    one = LayerCounts(*numbers)
                    if clock.seconds(one) < clock.seconds(best) - 1e-9:
                        best, better = one, True
    return best


def main(words: list[str]) -> None:
    parts, _ = parts_of(words)
    places = [at for key, at in OPEN.items() if f"{key}=auto" in words]
    choice, clock = parts.layer_choice, Clock(words)
    assert choice is not None
    start, layers = choice.closed, parts.model.num_layers
    most = LayerCounts(max(parts.model.layers_of_stages), layers, layers, layers)
    best = searched(clock, min(start, choice.counts, key=clock.seconds), places, most)
    everything = replace(start, **{name: getattr(most, name) for at, name in enumerate(vars_of(start)) if at in places})
    print("                recomputed parameters optimizer carried   seconds  GiB")
    rows = ("closed form", start), ("planned for", choice.counts), ("by the clock", best), ("all layers", everything)
    for name, one in rows:
        seconds = clock.seconds(one)
        print(f"{name:15} {' '.join(f'{n:9}' for n in astuple(one))} {seconds:9.4f} {clock.known[one][1]:5.1f}")
    print(f"{len(clock.known)} steps played")


def vars_of(counts: LayerCounts) -> list[str]:
    return list(counts.__dataclass_fields__)


if __name__ == "__main__":
    main(sys.argv[1:])
