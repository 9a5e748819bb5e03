"""Nodewise: heads shared inside nodes, sequences cut over just enough of them, both filling what others leave.

The project's own planner; docs/planner.md describes it, and its steps have the same numbers here:

1. Across nodes: rules place sequences, whole and cut, on nodes (rules, placements, fill, loads, shards).
2. Inside nodes: heads and homes of a node's sequences are shared by its GPUs (inside, node_seconds, chunks).
3. Order: operations are put in the order in which queues serve them (layout, operations, operation_table).
4. Choice: the best by estimate are played on the cluster's clock, and the fastest of them is improved (choice, trial,
   even); rivals are simpler systems whose plans may be faster yet.
5. Memory: a batch that does not fit is cut in micro-batches.

The arrays and numbers that go from one to the next are in records.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.memory.host_copies import waiting
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean, check_whole_number
from zbench.passes import reverse
from zbench.passes.order import scheduled
from zbench.plans.plan import Ints, Ops, Plan
from zbench.simulator.estimate.expert_layer import ExpertLayer
from zbench.systems.common.micro_batches import fitting
from zbench.systems.nodewise.choice import least_keys, worth_a_look, worth_a_play
from zbench.systems.nodewise.even import even_out
from zbench.systems.nodewise.layout import Layout
from zbench.systems.nodewise.operations import PAIR
from zbench.systems.nodewise.placements import Placement, placements
from zbench.systems.nodewise.rates import Rates, attention_seconds
from zbench.systems.nodewise.records import NodeSettings, Rule, Sequences
from zbench.systems.nodewise.rivals import EITHER, NEVER, USUAL, Rivals, narrow
from zbench.systems.nodewise.rules import Kinds
from zbench.systems.nodewise.shards import join, joint_bounds
from zbench.systems.nodewise.trial import PlayedPlans, Task, Trial, seconds_of
from zbench.systems.zeppelin.zones import capacity_tokens

CHUNKS = 3  # a GPU's heads are never cut in more
TIGHT = 0.8  # of the tokens a GPU has room for, where plans with all of them do not fit memory
SWITCHES = (
    "share_heads",
    "fewest_nodes",
    "fill_with_beginnings",
    "place_cut_first",
    "share_heads_across_nodes",
    "allow_uneven_nodes",
    "play_least_nic_use",
    "homes_where_lacking",
    "play_experts",
    "play_steps",
    "pair_backward_keys",
    "move_cuts",
    "move_sequences",
    "list_schedule",
    "adopt_rivals",
)
Change = Callable[[Trial], tuple[Layout, bool] | None]  # from the fastest trial to a layout, and whether with pairs


@dataclass(frozen=True, slots=True)
class Nodewise:
    """Plans by the five steps above, each of whose parts is a setting.

    played_placements: that are built and played; with one, no pairs and nothing evened, the estimate decides.
    max_played_operations: that all played plans of a micro-batch have together, beyond which no other is begun.
    head_chunks: parts in which a GPU's heads are exchanged and attended to at most. sequence_groups: in which a
    node's shared sequences are at most, each with a split of heads of its own.

    Each part of the planner can be switched off by itself, so that an ablation is a matter of switches.
    share_heads: nodes share heads of sequences (off: GPUs are what sequences are cut over, and keys travel).
    fewest_nodes: sequences are cut over just enough nodes, weighted by what is left (off: evenly over all).
    fill_with_beginnings: nodes that lack tokens get a stretch from the beginning of a sequence.
    place_cut_first: cut sequences are placed before the others, too.
    share_heads_across_nodes: nodes of a sequence that is on many share its heads, two or four of them each.
    allow_uneven_nodes: where gathers and reductions fill NICs, fewer sequences are cut over fewer nodes, too, which
        leaves nodes uneven.
    play_least_nic_use: of layouts with about the same estimate the one that needs NICs least is played, too.
    homes_where_lacking: tokens of shared sequences are at home where GPUs lack tokens (off: evenly).
    play_experts: with experts on several GPUs, plans are compared by layers in which ranks meet on the way to experts,
        and experts' parameters go among the GPUs that have them (off: as if all experts were at a token's home).
    play_steps: with play_experts a run plans each batch as if all experts were at home, too, plays a whole step of
        either, and takes the faster (zbench.interfaces.abilities.PlansInWays): off, as planning then takes three to
        twelve times as long.
    pair_backward_keys: the keys of two other nodes are attended to in one call of the backward, where that is faster.
    move_cuts: the cuts of the plan played fastest are moved, twice, by what its nodes took, and it is played again.
    move_sequences: whole sequences are moved then, too.
    list_schedule: the plan is list-scheduled.
    adopt_rivals: a simpler system's plans are taken where a step of them is faster (zbench.systems.nodewise.rivals).
    rival_pipelines: whether batches are planned as pipelines, which a rival does: "usual", "never", or None, which
        leaves it to the network; a run on a narrow network settles it before its first step (`limits`).

    Raises:
        ValueError: a number is not whole and at least 1, head_chunks are more than 3, a switch is neither true nor
            false, or rival_pipelines is none of its values, or usual without rivals.
    """

    plans_pipelines: ClassVar[bool] = True

    cost: Cost
    played_placements: int = 3
    max_played_operations: int = 200_000
    head_chunks: int = CHUNKS
    sequence_groups: int = 3
    share_heads: bool = True
    fewest_nodes: bool = True
    fill_with_beginnings: bool = True
    place_cut_first: bool = True
    share_heads_across_nodes: bool = True
    allow_uneven_nodes: bool = True
    play_least_nic_use: bool = True
    homes_where_lacking: bool = True
    play_experts: bool = True
    play_steps: bool = False
    pair_backward_keys: bool = True
    move_cuts: bool = True
    move_sequences: bool = True
    list_schedule: bool = False
    adopt_rivals: bool = True
    rival_pipelines: Literal["usual", "never"] | None = None
    simpler: Rivals = field(init=False, repr=False, compare=False)
    routed: ExpertLayer | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole_number("system.played_placements", self.played_placements, 1)
        check_whole_number("system.max_played_operations", self.max_played_operations, 1)
        check_whole_number("system.sequence_groups", self.sequence_groups, 1)
        check_whole_number("system.head_chunks", self.head_chunks, 1, CHUNKS)
        for name in SWITCHES:
            check_boolean(f"system.{name}", getattr(self, name))
        if self.rival_pipelines not in (None, USUAL, NEVER):
            raise ValueError(f"system.rival_pipelines is {self.rival_pipelines!r}; it takes null, {USUAL} or {NEVER}")
        if self.rival_pipelines == USUAL and not self.adopt_rivals:
            raise ValueError(
                f"system.rival_pipelines is {USUAL}; a rival plans pipelines, so it takes system.adopt_rivals=true"
            )
        object.__setattr__(self, "routed", ExpertLayer.of(self.cost) if self.play_experts else None)
        object.__setattr__(self, "simpler", Rivals(self.cost, self.rival_pipelines, self.routed))

    def limits(self, tokens: int) -> list[dict[str, str]]:
        """Lists the values of `rival_pipelines` to choose from before a run, where a network is so narrow that lengths
        decide (zbench.interfaces.abilities)."""
        open_to_both = self.adopt_rivals and self.rival_pipelines is None and self.cost.pipelines
        if not open_to_both or not narrow(tokens, self.cost, EITHER):
            return []
        return [{"rival_pipelines": one} for one in (NEVER, USUAL)]

    def ways(self) -> dict[str, dict[str, bool]]:
        """Returns the ways in which candidates may be compared, where experts are on several GPUs
        (zbench.interfaces.abilities)."""
        if self.routed is None or not self.play_steps:
            return {}
        return {"experts_elsewhere": {}, "experts_at_home": {"play_experts": False}}

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Plans as few micro-batches as memory allows, each by the placement that was played fastest."""
        played, known = PlayedPlans(), dict[tuple[bool, bool], Rates]()

        def planned(seqs: Ints, part: Cost) -> Iterator[Plan]:
            place = part.opens_step, part.closes_step
            if place not in known:
                known[place] = Rates.of(part, self.routed is not None)
            return replace(self, cost=part)._within_memory(batch.lengths[seqs], seqs, known[place], played)

        own = fitting(batch.lengths, self.cost, planned)
        return self.simpler.fastest(own, batch, played.seconds(own)) if self.adopt_rivals else own

    def _task(self, lengths: Ints, seqs: Ints, rates: Rates, room: int) -> Task:
        """The task that steps 1 to 4 are given. room: tokens of a GPU."""
        cluster = self.cost.cluster
        if not self.share_heads:  # every GPU is a node of its own
            cluster = replace(cluster, num_nodes=cluster.num_ranks, gpus_per_node=1, nics_per_node=1)
        ranks = cluster.gpus_per_node
        nodes = rates.nodes(cluster.num_nodes, ranks, room * ranks, self.share_heads)
        settings = NodeSettings(
            ranks, self.cost.model.num_heads, room, self.head_chunks, self.sequence_groups, self.homes_where_lacking
        )
        attention = attention_seconds(lengths, self.cost)
        waits = waiting(self.cost, lengths, *(self.cost.whole_seconds(lengths, way) for way in (False, True)))
        sequences, placed = (Sequences(lengths, one) for one in (attention, attention + waits))
        longest = int(lengths.argmax())  # which is cut first, and waits for its copies wherever its tokens are
        more = float((placed.attention - attention)[longest] / lengths[longest])
        nodes = nodes._replace(token=nodes.token._replace(query=nodes.token.query + more))
        return Task(sequences, placed, seqs, rates, nodes, settings, self.routed)

    # 1. Across nodes: which nodes a sequence is on.
    def _place(self, task: Task) -> tuple[list[Placement], list[Placement]]:
        """Placements with even nodes, and where NICs are full those with uneven ones; the best estimates first."""
        kinds = Kinds(self.fewest_nodes, self.fill_with_beginnings, self.place_cut_first, self.share_heads_across_nodes)
        given = task.placed, task.nodes
        even = placements(*given, kinds.even(task.work, task.nodes, self.cost.model.num_heads))
        nics_are_full = even and even[0].seconds > even[0].estimate.layer
        uneven = (
            placements(*given, kinds.uneven(task.work, task.nodes)) if self.allow_uneven_nodes and nics_are_full else []
        )
        return even or placements(*given, [Rule(len(task.seqs), even=True)]), uneven

    # 2. Inside nodes: which sequences are shared by a node's GPUs, and how.
    def _layouts(self, task: Task, even: list[Placement], uneven: list[Placement]) -> list[Layout]:
        """The layouts that are played, of the placements with the best estimates."""
        return worth_a_play([task.layout(one) for one in worth_a_look(even, uneven)], self.played_placements)

    # 3. Order: a layout's operations, in the order in which queues serve them, are played on the cluster's clock.
    def _play(self, task: Task, layout: Layout, pairs: bool = False) -> Trial:
        return task.play(layout, self.cost, pairs)

    # 4. Choice: the plan played fastest, of the layouts and of what is made of them.
    def _fastest(self, task: Task, even: list[Placement], uneven: list[Placement], played: PlayedPlans) -> Plan:
        layouts = self._layouts(task, even, uneven)
        if self.played_placements == 1 and not (self.pair_backward_keys or self.move_cuts or self.list_schedule):
            return task.plan(layouts[0], self.cost)
        best, left = self._improved(task, layouts, self.max_played_operations)
        another = least_keys(task, even, layouts) if self.play_least_nic_use and left > 0 else None
        if another is not None and self._play(task, another).seconds < best.seconds:
            best, _ = self._improved(task, [another], left)
        if self.list_schedule:
            ordered, _, parts = scheduled(best.plan, self.cost, best.parts)
            seconds = seconds_of(ordered, parts, self.cost, self.routed)
            if seconds < best.seconds:
                return played.add(ordered, seconds)
        return played.add(best.plan, best.seconds)

    def _improved(self, task: Task, layouts: list[Layout], operations: int) -> tuple[Trial, int]:
        """(the fastest of the layouts and of what is made of the fastest of them, operations that are left)."""
        best = self._play(task, layouts[0])
        left = operations - best.operations
        for change in self._changes(task, layouts[1:]):
            if left <= 0:
                break
            changed = change(best)
            if changed is not None:
                other = self._play(task, *changed)
                left -= other.operations
                best = other if other.seconds < best.seconds else best
        return best, left

    def _changes(self, task: Task, others: list[Layout]) -> list[Change]:
        """From the fastest trial so far to the next: other layouts, other shards in pairs, cuts moved twice."""

        def moved(best: Trial, alike: bool) -> tuple[Layout, bool] | None:
            busy = best.busy(self.cost).reshape(task.nodes.num_nodes, -1).mean(axis=1)
            placed = even_out(best.layout.placement, task.placed, task.nodes, busy, alike, self.move_sequences)
            return None if placed is None else (task.layout(placed), best.pairs)

        changes: list[Change] = [partial(_instead, other) for other in others]
        changes += [_paired] if self.pair_backward_keys else []
        return changes + ([partial(moved, alike=alike) for alike in (False, True)] if self.move_cuts else [])

    # 5. Memory: how many tokens a GPU may be home of; zbench.systems.common.micro_batches takes what fits.
    def _within_memory(self, lengths: Ints, seqs: Ints, rates: Rates, played: PlayedPlans) -> Iterator[Plan]:
        """The best plan; then, for want of memory, one with tokens spread more evenly; then without kept keys."""
        mean = -(-int(lengths.sum()) // self.cost.cluster.num_ranks)
        room = max(capacity_tokens(self.cost), mean)
        plan = None
        for most in (room, max(int(TIGHT * room), int(1.02 * mean))):
            task = self._task(lengths, seqs, rates, most)
            even, uneven = self._place(task)
            if even or uneven:
                plan = self._fastest(task, even, uneven, played)
                yield plan
        assert plan is not None, "everything cut evenly always fits the room of the mean"
        yield reverse(plan.with_(backward=Ops.concatenate([])), "regather")


def _instead(other: Layout, best: Trial) -> tuple[Layout, bool]:
    """Another layout, whatever was best so far."""
    return other, False


def _paired(best: Trial) -> tuple[Layout, bool] | None:
    """The same layout with the keys of two others in one call, where a sequence has so many joint shards."""
    placed = best.layout.placement
    joints = join(placed.shards, joint_bounds(placed.shards, placed.rule.wide))
    return (best.layout, True) if np.bincount(joints["seq"], minlength=1).max() > PAIR else None
