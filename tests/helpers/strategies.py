"""What the property tests draw from: adversarial lengths, odd clusters, awkward models, and plans of every kind."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.links import Domain
from zbench.describe.mask import CAUSAL, FULL, Mask
from zbench.describe.model import RECOMPUTE, SHARDING, Model
from zbench.passes import order, remap, reverse, route
from zbench.passes.reverse import MODES
from zbench.plans.build import Builder
from zbench.plans.patterns import all_gather, local, pack_zigzag, ring, sequence_zigzag, ulysses_ring
from zbench.plans.plan import Plan

PRIMES = (2, 3, 5, 7, 11, 13, 17, 31, 61, 97, 127, 131)

# A real GPU's proportions: short pieces are all start-up, so planners leave them whole.
REAL = Device("real", 1e15, 80e9, 2e12, 3e11, 5e14, 6e14, 5e14, 5e-6, 6e-5)
# No start-up cost and little compute: planners have a reason to cut even a few hundred tokens.
SHARP = Device("sharp", 1e12, 80e9, 1e12, 1e12, 1e10, 1e9, 1e9, 1e-12, 1e-12)


@st.composite
def lengths(draw: st.DrawFn, most: int = 240, sequences: int = 12) -> np.ndarray:
    """At most about `most` tokens: ones, primes, all equal, one giant, a long tail, or anything."""
    kind = draw(st.sampled_from(("any", "ones", "primes", "equal", "giant", "tail")))
    count = draw(st.integers(1, sequences))
    small = max(most // (2 * sequences), 1)
    if kind == "ones":
        found = [1] * count
    elif kind == "primes":
        found = draw(st.lists(st.sampled_from([p for p in PRIMES if p <= most // 3] or [1]), min_size=1, max_size=3))
    elif kind == "equal":
        found = [draw(st.integers(1, max(most // count, 1)))] * count
    elif kind == "giant":
        found = [draw(st.integers(most // 2, most)), *[1] * (count - 1)]
    elif kind == "tail":
        found = [max(int(most / 2 / (rank + 1) ** 1.5), 1) for rank in range(count)]
        found = draw(st.permutations(found))
    else:
        found = draw(st.lists(st.integers(1, 2 * small), min_size=count, max_size=count))
    return np.array(found, np.int64)


@st.composite
def batches(draw: st.DrawFn, most: int = 240, sequences: int = 12) -> Batch:
    return Batch(draw(lengths(most, sequences)), seed=0, step=0)


@st.composite
def domains(draw: st.DrawFn, per_node: int) -> tuple[Domain, ...]:
    """Mostly none; else domains of a node of so many GPUs that lie in one another, with links of all kinds."""
    found: list[Domain] = []
    gpus = per_node
    for name in draw(st.sampled_from(((), (), ("pair",), ("quad", "pair")))):
        fitting = [count for count in range(2, gpus + (not found)) if gpus % count == 0]
        if fitting:
            gpus = draw(st.sampled_from(fitting))
            rate, latency = draw(st.sampled_from((5e10, 4e11))), draw(st.sampled_from((0.0, 2e-6)))
            found.append(Domain(name, gpus, rate, 0.7, latency, draw(st.sampled_from((1, 1, 3)))))
    return tuple(found)


@st.composite
def clusters(draw: st.DrawFn, nodes: int = 4, gpus: int = 8) -> Cluster:
    """1 to `nodes` nodes of 1 to `gpus` GPUs, not only powers of two, with as many NICs or fewer, and with domains."""
    per_node = draw(st.integers(1, gpus))
    return Cluster(
        name="drawn",
        num_nodes=draw(st.integers(1, nodes)),
        gpus_per_node=per_node,
        nics_per_node=draw(st.integers(1, per_node)),
        nic_bandwidth=draw(st.sampled_from((1e9, 25e9))),
        nic_efficiency=0.8,
        nic_latency=draw(st.sampled_from((0.0, 1.5e-5))),
        nvlink_bandwidth=2e11,
        nvlink_efficiency=0.6,
        nvlink_latency=draw(st.sampled_from((0.0, 1e-5))),
        device=draw(st.sampled_from((REAL, SHARP))),
        nic_channels=draw(st.sampled_from((1, 1, 2, 3))),
        nvlink_channels=draw(st.sampled_from((1, 1, 2))),
        domains=draw(domains(per_node)),
    )


@st.composite
def shaped(draw: st.DrawFn, device: Device) -> Device:
    """The device, half of the time with matmuls by shape on few or many multiprocessors."""
    count = draw(st.sampled_from((0, 0, 2, 108)))
    return replace(device, multiprocessors=count, matmul_shapes=count > 0)


def masks() -> st.SearchStrategy[Mask]:
    """Causal half of the time; windows from a token to more than sequences have."""
    return st.one_of(st.just(CAUSAL), st.just(CAUSAL), st.just(FULL), st.builds(Mask, window=st.integers(1, 120)))


@st.composite
def models(draw: st.DrawFn, heads: int = 6) -> Model:
    """Grouped-query or not, with head counts that ranks do not divide; recomputation, sharding and experts vary."""
    num_heads = draw(st.integers(1, heads))
    return Model(
        name="drawn",
        num_layers=draw(st.integers(1, 4)),
        hidden=16,
        num_heads=num_heads,
        num_kv_heads=draw(st.sampled_from([d for d in range(1, num_heads + 1) if num_heads % d == 0])),
        head_dim=draw(st.integers(1, 4)),
        ffn_hidden=32,
        vocab=64,
        tied_embeddings=draw(st.booleans()),
        num_experts=4,
        experts_per_token=draw(st.integers(1, 4)),
        shared_experts=draw(st.integers(0, 2)),
        recompute=draw(st.sampled_from(RECOMPUTE)),
        sharding=draw(st.sampled_from(SHARDING)),
        kernels=draw(st.sampled_from(("fused", "eager"))),
    )


@st.composite
def costs(
    draw: st.DrawFn, nodes: int = 4, gpus: int = 8, heads: int = 6, mask: st.SearchStrategy[Mask] | None = None
) -> Cost:
    """mask: causal, unless a test asks for others (`masks`)."""
    model = draw(models(heads))
    return Cost(draw(clusters(nodes, gpus)), model if mask is None else replace(model, mask=draw(mask)))


@st.composite
def forwards(draw: st.DrawFn, cost: Cost, most: int = 240) -> Plan:
    """A forward plan of any pattern, or of several laid over one another as a system would."""
    tokens = draw(lengths(most))
    ranks = cost.cluster.num_ranks
    builder = Builder(tokens, ranks, cost.model.num_heads, cost.model.mask)
    kind = draw(st.sampled_from(("local", "ring", "ulysses", "usp", "pack", "sequence", "mixed")))
    everyone = np.arange(ranks)
    seqs, zero = np.arange(len(tokens)), np.zeros(len(tokens), np.int64)
    if kind == "local":
        place = draw(st.lists(st.integers(0, ranks - 1), min_size=len(seqs), max_size=len(seqs)))
        local(builder, seqs, np.array(place))
    elif kind == "ring":
        ring(builder, seqs, zero, everyone[None])
    elif kind in ("ulysses", "usp"):
        fitting = [d for d in range(1, cost.model.num_heads + 1) if ranks % d == 0]
        degree = fitting[-1] if kind == "ulysses" else draw(st.sampled_from(fitting))
        slices = draw(st.integers(1, 4)) if degree == ranks else 1
        ulysses_ring(builder, seqs, zero, everyone.reshape(1, -1, degree), slices=slices)
    elif kind in ("pack", "sequence"):
        cut = pack_zigzag if kind == "pack" else sequence_zigzag
        all_gather(builder, *cut(tokens, ranks, cost.model.mask), everyone.reshape(cost.cluster.num_nodes, -1))
    else:
        _mixed(draw, builder, cost)
    return builder.build()


def _mixed(draw: st.DrawFn, builder: Builder, cost: Cost) -> None:
    """Each sequence local, in a ring inside a node, or in a ring over all ranks: Zeppelin's shape."""
    ranks, nodes = cost.cluster.num_ranks, cost.cluster.num_nodes
    count = len(builder.lengths)
    zone = np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    place = np.array(draw(st.lists(st.integers(0, ranks - 1), min_size=count, max_size=count)))
    whole, inner, outer = (np.flatnonzero(zone == z) for z in range(3))
    if len(outer):
        ring(builder, outer, 0 * outer, np.arange(ranks)[None])
    if len(inner):
        ring(builder, inner, place[inner] % nodes, np.arange(ranks).reshape(nodes, -1))
    if len(whole):
        local(builder, whole, place[whole])


@st.composite
def plans(draw: st.DrawFn, cost: Cost, most: int = 240) -> Plan:
    """A complete plan: any forward, any backward mode, any of the rewrites, in the order systems apply them."""
    plan = draw(forwards(cost, most))
    if draw(st.booleans()):
        plan = remap(plan, cost, draw(st.sampled_from((0, 0, 5))))
    plan = reverse(plan, draw(st.sampled_from(MODES)))
    if draw(st.booleans()):
        plan = route(plan, cost)
    if draw(st.booleans()):
        plan = order(plan, cost)
    return plan


@st.composite
def cases(
    draw: st.DrawFn, nodes: int = 4, gpus: int = 8, most: int = 240, mask: st.SearchStrategy[Mask] | None = None
) -> tuple[Cost, Plan]:
    cost = draw(costs(nodes, gpus, mask=mask))
    return cost, draw(plans(cost, most))
