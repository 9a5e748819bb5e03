"""Small steps, their tokens, and what they come to when they are executed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from tests.helpers import dense_step
from zbench.correctness.steps.computing import Tokens
from zbench.correctness.steps.interpreter import StepInterpreter
from zbench.correctness.steps.mutate import KINDS, step_mutant
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.exchanges import UNCUT, TokenSlices
from zbench.describe.expert_schedule import TOKEN_CHOICE, ExpertChunks
from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.passes.reverse import Mode, reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ulysses_ring
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import Plan
from zbench.step.passes.build import whole_step
from zbench.step.passes.overlap.token_slices import TokenChunk, TokenCuts
from zbench.step.passes.own_plans import own_plans, parts_of_layouts
from zbench.step.passes.parameters.pipeline_parameters import PipelineShapes
from zbench.step.passes.parameters.tied_tables import has_two_tables
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.router.seats import RouterSeats
from zbench.step.passes.routing import TOGETHER, ExpertParallel, Routing
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.template import ACROSS, Items, Step

MODEL = Model(name="tiny", num_layers=2, hidden=6, num_heads=4, num_kv_heads=2, head_dim=4, ffn_hidden=8, vocab=12)
WHOLE_CUTS = TokenCuts()
EXPERTS = replace(MODEL, ffn_hidden=4, num_experts=4, experts_per_token=2)


def plan_of(
    lengths: list[int],
    ranks: int,
    heads: int,
    mode: Mode = "carry",
    inner: int = 1,
    first: int = 0,
    mask: Mask = CAUSAL,
) -> Plan:
    """One group over all ranks: a ring of groups of `inner` that exchange heads. first: the number of its first
    sequence in the batch."""
    builder = Builder(np.array(lengths), ranks, heads, mask, first + np.arange(len(lengths)))
    every = np.arange(len(lengths))
    ulysses_ring(builder, every, 0 * every, np.arange(ranks).reshape(1, -1, inner))
    return reverse(builder.build(), mode)


def plan_of_blocks(lengths: list[int], ranks: int, heads: int) -> Plan:
    """A ring of the first sequence over all ranks, and the others each on a rank by itself, so that some ranks have
    several blocks."""
    builder = Builder(np.array(lengths), ranks, heads)
    ulysses_ring(builder, np.array([0]), np.array([0]), np.arange(ranks).reshape(1, -1, 1))
    others = np.arange(1, len(lengths))
    local(builder, others, others % ranks)
    return reverse(builder.build(), "carry")


def pipeline_plans(
    shapes: list[tuple[int, int]], batches: list[list[tuple[int, int]]], ranks: int, heads: int = 4
) -> list[Plan]:
    """Plans of pipelines (tp, pp) side by side, from rank 0 on. batches: of each micro-batch, (length, pipeline) of
    every sequence."""
    tp, pp = (np.array(column, np.int64) for column in zip(*shapes, strict=True))
    pipelines, first, found = Pipelines(np.cumsum(tp * pp) - tp * pp, tp, pp), 0, []
    for batch in batches:
        lengths, where = (np.array(column) for column in zip(*batch, strict=True))
        builder = Builder(lengths, ranks, heads, sequences=first + np.arange(len(batch)))
        local(builder, np.arange(len(batch), dtype=np.int64), pipelines.lead[where])
        first += len(batch)
        found.append(reverse(builder.build(), "keep").with_(pipelines=pipelines))
    return found


def sequences_of(plans: list[Plan], model: Model) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Tokens and targets of every sequence of the batch."""
    rng = np.random.default_rng(7)
    lengths = {int(n): int(size) for plan in plans for n, size in zip(plan.sequences, plan.lengths, strict=True)}
    return {n: tuple(rng.integers(0, model.vocab, (2, lengths[n]))) for n in sorted(lengths)}


def tokens_of(
    plan: Plan,
    sequences: dict[int, tuple[np.ndarray, np.ndarray]],
    degree: int,
    routing: Routing | RouterSeats | None = None,
    cuts: TokenCuts = WHOLE_CUTS,
) -> Tokens:
    """The tokens of every part of t: a block's tokens in order, in `degree` shares, the first ones larger by one, which
    are divided where a slice of a GPU's tokens ends: its token number i of n is in the last slice s that begins, at
    n s // slices, no later. Of chunks of a group's tokens there are as many slices as it takes. Then parts end where
    the tokens that go to hosts do."""
    placed: list[tuple[tuple[int, int], int, list[int], list[int]]] = []
    totals, before = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    blocks, columns, runs = plan.blocks, ([], [], [], []), dict[int, list]()
    for block in range(len(blocks)):
        seq, position, seen = [], [], []
        for piece in np.flatnonzero(blocks.block == block):
            span = range(int(blocks.start[piece]), int(blocks.stop[piece]))
            seq += [int(plan.sequences[blocks.seq[piece]])] * len(span)
            position += span
            seen += [len(range(max(0, at + 1 - plan.mask.window) if plan.mask.window else 0, at + 1)) for at in span]
        count = 2 * degree if cuts.by_area else degree
        shares = [one.tolist() for one in np.array_split(np.arange(len(seq)), count)]
        gpus = list(range(degree))
        if cuts.by_area:  # the cheapest and the dearest run are the first GPU's, and so on
            few = [at for at, one in enumerate(shares) if one]
            rank = sorted(few, key=lambda at: (sum(seen[i] for i in shares[at]), at))
            gpus = [min(place := rank.index(at), 2 * degree - 1 - place) if at in few else 0 for at in range(count)]
        runs[block] = [
            (gpu, [seq[i] for i in one], [position[i] for i in one]) for gpu, one in zip(gpus, shares, strict=True)
        ]
        for gpu, one, _ in runs[block]:
            key = (int(blocks.home[block]), gpu)
            totals[key] = totals.get(key, 0) + len(one)
    for block in range(len(blocks)):
        for gpu, one, two in runs[block]:
            key = (int(blocks.home[block]), gpu)
            first, total = before.get(key, 0), totals[key]
            before[key] = first + len(one)
            every = [cuts.slices, *(cuts.slices * chunks_of(totals, key[0], degree, one) for one in cuts.chunks)]
            numbers = [
                tuple(max(s for s in range(slices) if total * s // slices <= first + at) for slices in every)
                for at in range(len(one))
            ]
            for number in sorted(set(numbers)):
                at = [place for place, mine in enumerate(numbers) if mine == number]
                placed.append((key, block, [one[i] for i in at], [two[i] for i in at]))
    for one, two in pieces_of(plan, cuts, placed):
        if len(one):
            values = [[sequences[s][which][p] for s, p in zip(one, two, strict=True)] for which in (0, 1)]
            for column, value in zip(columns, (one, two, *values), strict=True):
                column.append(np.array(value, np.int64))
    routing = routing if isinstance(routing, Routing) else None
    chosen = [] if routing is None else np.split(routing.chosen, routing.begin[1:-1])
    return Tokens(*columns, chosen, None if routing is None else routing.padding)


def pieces_of(
    plan: Plan, cuts: TokenCuts, placed: list[tuple[tuple[int, int], int, list[int], list[int]]]
) -> list[tuple[list[int], list[int]]]:
    """The sequences and positions of placed pieces (of a GPU and a block), each cut where what its GPU sends to hosts
    ends: of blocks with the largest shares first, as many tokens as the shares of all of its tokens come to."""
    if not cuts.shares:
        return [(one, two) for _, _, one, two in placed]
    own = dict(zip(plan.sequences.tolist(), cuts.shares, strict=True))
    of_block = [
        round(np.mean([own[s] for _, at, one, _ in placed if at == block for s in one]), 12)
        for block in range(len(plan.blocks))
    ]
    left = {key: sum(of_block[at] * len(one) for gpu, at, one, _ in placed if gpu == key) for key, *_ in placed}
    left = {key: ceil(round(size, 4)) for key, size in left.items()}
    cut = [0] * len(placed)
    for number in sorted(range(len(placed)), key=lambda number: (-of_block[placed[number][1]], number)):
        key, _, one, _ = placed[number]
        cut[number] = min(left[key], len(one))
        left[key] -= cut[number]
    return [
        half
        for (_, _, one, two), at in zip(placed, cut, strict=True)
        for half in ((one[:at], two[:at]), (one[at:], two[at:]))
    ]


def chunks_of(totals: dict[tuple[int, int], int], home: int, degree: int, chunk: TokenChunk) -> int:
    """In how many chunks a group of GPUs computes its tokens: as that of `alike` with the most tokens. totals:
    tokens of each group's GPUs."""
    each = max(chunk.alike // degree, 1)
    groups = range(home // each * each, home // each * each + each)
    return max(ceil(sum(totals.get((one, at), 0) for at in range(degree)) / chunk.tokens) for one in groups)


def routes_of(tokens: list[Tokens], sequences: dict[int, tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray] | None:
    """The experts of every token of every sequence, in order; None where there are none."""
    if not tokens[0].chosen:
        return None
    found = {n: np.zeros((len(sequences[n][0]), tokens[0].chosen[0].shape[1]), np.int64) for n in sequences}
    for one in tokens:
        for part, chosen in enumerate(one.chosen):
            for at, experts in enumerate(chosen):
                found[int(one.sequence[part][at])][one.position[part][at]] = experts
    return [found[n] for n in sorted(found)]


def chosen_routes(
    run: StepInterpreter, tokens: list[Tokens], parts: list[PlanParts], sequences: dict[int, tuple[np.ndarray, ...]]
) -> list[np.ndarray]:
    """The experts of every token of every sequence in every layer, in order, as routers of an interpreted step chose
    them, ~expert where it has no seat: each token's largest logits, or all experts where these choose."""
    model, of_tokens = run.model, parts[0].experts.routing == TOKEN_CHOICE
    count = model.experts_per_token if of_tokens else model.num_experts
    found = {n: np.full((model.num_layers, len(one[0]), count), 99) for n, one in sequences.items()}
    for (number, layer, group), (logits, slices) in run.choices.items():
        seats = np.concatenate([slices[one] for one in sorted(slices)]).reshape(model.num_experts, -1)
        one, routing = tokens[number], parts[number].routing
        assert isinstance(routing, RouterSeats)
        own = np.flatnonzero(routing.of_part == group).tolist()
        where = [pair for part in own for pair in zip(one.sequence[part], one.position[part], strict=True)]
        for token, (sequence, position) in enumerate(where):
            every = np.argsort(-logits[token], kind="stable")[:count] if of_tokens else np.arange(count)
            found[int(sequence)][layer, position] = [one if token in seats[one] else ~one for one in every]
    return [found[n] for n in sorted(found)]


def resting_gradients(run: StepInterpreter, step: Step, items: Items) -> set[tuple[str, int]]:
    """The parameters, by name and layer (0 of those outside the layers), whose gradients are among what a step begins
    with, or ends with: a run's first step begins with none, and leaves what they are of as it was."""
    found = {
        (name[1:], layer)
        for name, layers, *_ in run.resting(step.layouts[0], items)
        for layer in (layers if name[1:] not in dense_step.OUTSIDE else [0])
        if name[0] == "d"
    }
    return found | ({("wh", 0)} if has_two_tables(step) and ("we", 0) in found else set())


def execute(
    step: Step,
    plans: list[Plan],
    degree: int,
    model: Model = MODEL,
    experts: ExpertParallel = TOGETHER,
    slices: TokenSlices = UNCUT,
    shares: Sequence[tuple[float, ...]] = (),
) -> float:
    """The largest relative error of the executed step: of the loss, of every gradient and parameter wherever it is.
    slices: in which exchanges of groups cut tokens; shares: of each plan's sequences the share of tokens that is sent
    to hosts."""
    given, sequences = dense_step.weights(model), sequences_of(plans, model)
    if plans[0].pipelines is None:
        parts = parts_of_layouts(plans, model, degree, experts, slices, shares)
    else:
        shapes = PipelineShapes.of(plans[0].pipelines)
        own = own_plans(plans)
        parts = [PlanParts(plan, model, shapes.tp[number], finest=shapes.slices) for number, plan in own]
    tokens = [tokens_of(one.plan, sequences, one.degree, one.routing, one.token_cuts) for one in parts]
    layout = step.layouts[0]
    run = StepInterpreter(step, model, tokens, given)
    draw = np.random.default_rng(5)
    begun = {name[1:]: layers for name, layers, *_ in run.resting(layout, step.begins) if name[0] == "d"}
    run.gradients = {name: draw.normal(size=given[name].shape) for name in begun}
    carried, left = (resting_gradients(run, step, items) for items in (step.begins, step.ends))
    if has_two_tables(step) and "we" in run.gradients:  # which are updated by one gradient
        run.gradients["wh"] = run.gradients["we"]
    there = run.run()
    before_all, given = given, {name: value.copy() for name, value in given.items()}
    for name, layer in carried:  # updated before all else
        at = ... if name in dense_step.OUTSIDE else layer
        given[name][at] -= 0.5 * run.gradients[name][at]
    routes = chosen_routes(run, tokens, parts, sequences) if run.choices else routes_of(tokens, sequences)
    loss, gradients = dense_step.step(model, given, [sequences[n] for n in sorted(sequences)], routes)
    worst = abs(sum(there["loss", 0, -1].values()) / loss - 1)
    for name, layers, first, cell in run.resting(layout, step.ends):
        if name == "loss":
            continue
        weight = name if name in given else name[1:]
        if weight not in dense_step.OUTSIDE:
            layers = [layer for layer in layers if layer in dense_step.layers_with(model, weight)]
        for layer in layers:
            place = int(step.where(ACROSS, layer)[first]) if weight not in dense_step.OUTSIDE else first
            at = ... if weight in dense_step.OUTSIDE else layer
            before, gradient = before_all[weight][at], gradients[weight][at]
            used = 0 * gradient if (weight, layer) in left else gradient
            used = run.gradients[weight][at] if (weight, layer) in carried else used
            wanted = gradient if name == f"d{weight}" else used if name != weight else before - 0.5 * used
            want = run.shards(layout, name, wanted, cell[0])[cell[1]]
            found = there[name, layer, -1][place, cell]
            worst = max(worst, float(np.abs(found - want).max() / (np.abs(wanted).max() or 1.0)))
    return float(worst)


def fault(step: Step) -> str:
    """Returns what the proof says of a step, "" if nothing."""
    try:
        prove_step(step)
    except StepError as error:
        return str(error)
    return ""


def rejected_mutants(
    step: Step, seed: int, tried: int = 2 * len(KINDS), error: Callable[[Step], float] = lambda accepted: 0.0
) -> int:
    """How many of so many mutants of a step its proof rejects; the unrolled walk agrees on each, and what both accept
    comes out right. error: of a step that is executed."""
    rng, rejected = np.random.default_rng(seed), 0
    for at in range(tried):
        broken = step_mutant(step, KINDS[at % len(KINDS)], rng)
        if broken is not None:
            told = fault(broken)
            assert bool(told) == bool(unrolled_fault(broken)), (KINDS[at % len(KINDS)], told)
            rejected += bool(told)
            assert told or error(broken) < 1e-12
    return rejected


def routed_step(
    model: Model,
    how: ExpertParallel,
    batches: Sequence[list[int]],
    shape: tuple[int, int, int],
    kept: tuple[str, str],
    chunks: ExpertChunks,
) -> tuple[Step, list[Plan], float]:
    """A step of micro-batches whose tokens go to experts, its plans, and its error. shape: ranks, tensor parallelism
    and stages; kept: ZeRO's stage and the level of recomputation."""
    (ranks, degree, stages), (zero, recompute) = shape, kept
    plans = [plan_of(lengths, ranks, 4 // degree, first=2 * at) for at, lengths in enumerate(batches)]
    overlap = StepOverlap(experts=chunks)
    step = whole_step(model, plans, degree, zero, overlap, recompute, how, stages)
    return step, plans, execute(step, plans, degree, model, how.in_chunks(chunks), overlap.token_slices)
