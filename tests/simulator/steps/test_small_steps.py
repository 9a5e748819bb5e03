"""Small steps with their arithmetic: tensor parallelism, parameters on three classes of links, experts, host memory."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.offload_step import offload_text
from zbench.cost.cost import Cost
from zbench.describe.cluster import LONGEST_WAITING, PLAN, PORT_ORDERS, SHARED, Cluster
from zbench.describe.device import Device
from zbench.describe.links import Domain
from zbench.describe.model import Model
from zbench.simulator.steps.expand import BYTES, LINK_A, QUEUE_A, QUEUE_B
from zbench.simulator.steps.play import PlayedStep, play_layers, play_step
from zbench.step.proof.prove import prove_step
from zbench.step.reading.read import read_step

US = 1e-6
# Nothing but matmuls, at 650 TFLOP/s, and links takes time.
DEVICE = Device("d", 1e15, 8e10, 1e18, 1e18, 650e12, 1e15, 1e15, 1e-15, 1e-15)
MODEL = Model("m", 1, 8192, 8, 8, 128, 28672, 1000)


def cluster(nodes: int, gpus: int, nvlink: float = 360e9, nic: float = 45e9, **more: object) -> Cluster:
    return Cluster("c", nodes, gpus, gpus, nic, 1.0, 0.0, nvlink, 1.0, 0.0, DEVICE, **more)  # type: ignore[arg-type]


def played(text: str, of: Cluster) -> PlayedStep:
    step = read_step(text)
    prove_step(step)
    return play_step(step, (), Cost(of, MODEL))


def numbers(values: object) -> str:
    return " ".join(map(str, values))  # type: ignore[call-overload]


def feed_forward(parts: int, operations: str) -> str:
    """8,192 tokens of 8 GPUs in so many parts a GPU, 8192 x 28672 and back, columns over GPUs."""
    homes = np.repeat(np.arange(8), parts)
    draws = "".join(f"  compute: compute m[{part}] at {home}\n" for part, home in enumerate(homes))
    return f"""step of 0 layers on 8 GPUs and 0 host memories
layout
  index t of batch: {numbers([1024 // parts] * 8 * parts)}
  index f: {numbers([3584] * 8)}
  tensor m[t]: copy, none, 16384 bytes, home {numbers(homes)}
  tensor u[t,f]: copy, none, 2 bytes, home none
  tensor b[t]: sum add, none, 16384 bytes, home {numbers(homes)}
  tensor x: copy, none, 1 bytes, home 0
  tensor y[t]: copy, none, 1 bytes, home {numbers(homes)}
  tensor wu[f]: state, none, 16384 bytes, home {numbers(range(8))}
  tensor wd[f]: state, none, 16384 bytes, home {numbers(range(8))}
  formula m[t] = draw(x)
  formula u[t,f] = m[t] wu[f]
  formula b[t] += u[t,f] wd[f]
  formula y[t] = use(b[t])
template all of layout 0
  makes m u b y
  needs x at 0-7
  needs wu[*] at home
  needs wd[*] at home
  leaves x at 0-7
  leaves wu[*] at home
  leaves wd[*] at home
{draws}{operations}{draws.replace("compute m", "compute y")}play all for layer 0
begins x at 0-7
begins wu[*] at home
begins wd[*] at home
ends x at 0-7
ends wu[*] at home
ends wd[*] at home
"""


def computes(tokens: str, gpu: int) -> str:
    return f"  compute: compute u[{tokens},{gpu}] at {gpu}\n  compute: compute b[{tokens},{gpu}] at {gpu}\n"


COMPUTE = 2 * 2 * 8192 * 8192 * 28672 / 8 / 650e12  # 1,480 us
GATHER = 8192 * 16384 * 7 / 8 / 360e9  # 326 us; a reduction is as long


def test_a_tensor_parallel_feed_forward() -> None:
    """Plain collectives: gather, matmuls, reduction one after another, 2,132 us. In four slices of tokens all but the
    first slice's gather and the last one's reduction is hidden: 1,643. From GPU to GPU nothing but the last part's sums
    is shown, an eighth of the tokens: 1,527."""
    of = cluster(1, 8)
    tp = "  tensor_parallel:"
    plain = f"{tp} gather m[*] to 0-7\n{''.join(computes('*', gpu) for gpu in range(8))}{tp} reduce b[*] of 0-7\n"
    assert pytest.approx(1480 * US, rel=1e-3) == COMPUTE
    assert played(feed_forward(1, plain), of).seconds == pytest.approx(COMPUTE + 2 * GATHER, rel=1e-6)
    slices = [numbers(range(at, 32, 4)) for at in range(4)]
    sliced = "".join(f"{tp} gather m[{one}] to 0-7\n" for one in slices)
    for one in slices:
        sliced += "".join(computes(one, gpu) for gpu in range(8)) + f"{tp} reduce b[{one}] of 0-7\n"
    assert played(feed_forward(4, sliced), of).seconds == pytest.approx(COMPUTE + GATHER / 2, rel=1e-6)
    ring = "".join(f"{tp} send m[{gpu}] {gpu} -> {(gpu + far) % 8}\n" for far in range(1, 8) for gpu in range(8))
    for far in range(8):
        for gpu in range(8):
            ring += computes(str((gpu - far) % 8), gpu)
            ring += f"{tp} move b[{(gpu - far) % 8}] {gpu} -> {(gpu - far) % 8}\n" if far else ""
    assert played(feed_forward(1, ring), of).seconds == pytest.approx(COMPUTE + GATHER / 7, rel=1e-6)


def layers(count: int, held: str, size: int) -> str:
    """Layers with one matmul on 8 GPUs, whose parameters are gathered a layer ahead; each shard is held by every pair,
    by every node, or once in the world."""
    width = {"pair": 2, "node": 4, "world": 8}[held]
    places = "".join(f"w+OFF[{shard}] at {numbers(range(shard, 8, width))}\n" for shard in range(width))

    def lines(word: str, offset: int, everywhere: bool) -> str:
        text = f"w+{offset}[*] at 0-7\n" if everywhere else places.replace("OFF", str(offset))
        return "".join(f"  {word} {line}\n" for line in text.replace("+0[", "[").replace("+-1[", "-1[").splitlines())

    def gather(offset: int) -> str:
        name = f"w+{offset}" if offset else "w"
        if held == "world":
            return f"  parameters: gather {name}[*] to 0-7\n"
        found = [(gpu, gpu ^ far) for far in range(1, width) for gpu in range(8)]
        return "".join(f"  parameters: send {name}[{a % width}] {a} -> {b}\n" for a, b in found)

    def computed(text: str) -> str:
        return "".join(f"  compute: compute {text}[{gpu}] at {gpu}\n" for gpu in range(8))

    return f"""step of {count} layers on 8 GPUs and 0 host memories
layout
  index t of batch: {numbers([1024] * 8)}
  index z: {numbers([8192 * size // width] * width)}
  tensor x[t]: copy, border, 16384 bytes, home {numbers(range(8))}
  tensor w[z]: state, layer, 2 bytes, home {numbers(range(width))}
  tensor s: copy, none, 1 bytes, home 0
  tensor y[t]: copy, none, 1 bytes, home {numbers(range(8))}
  formula x'[t] = x[t] w[*]
  formula x[t] = begin(s)
  formula y[t] = end(x[t])
template begin of layout 0
  makes x.2
  needs s at 0-7
{lines("needs", 0, False)}  leaves s at 0-7
  leaves x[*] at home
{lines("leaves", 0, True)}{gather(0)}{computed("x.2")}template forward of layout 0
  makes x
  needs x[*] at home
{lines("needs", 0, True)}{lines("needs", 1, False)}  leaves x+1[*] at home
{lines("leaves", 1, True)}{lines("leaves", 0, False)}{gather(1)}{computed("x")}template end of layout 0
  makes y
  needs x[*] at home
{computed("y")}play begin for layer 0
play forward for layers 0 to {count - 1}
play end for layer {count}
begins s at 0-7
{lines("begins", 0, False).replace("  begins", "begins")}ends s at 0-7
{lines("ends", 0, False).replace("  ends", "ends")}"""


@pytest.mark.parametrize(
    ("held", "rate", "lacks"), [("pair", 500e9, 1 / 2), ("node", 500e9, 1 / 2), ("world", 100e9, 1 / 2 / 4)]
)
@pytest.mark.parametrize("slow", [False, True])
def test_parameters_of_pairs_nodes_and_the_world(held: str, rate: float, lacks: float, slow: bool) -> None:
    """Two nodes of two pairs. The half that a GPU lacks comes in by its port to the pair; the half that its pair lacks
    by its port to the node; a quarter of the half that its node lacks by its NIC. One layer is gathered ahead: each of
    40 layers takes as long as the longer of matmul and gather, and the first gather and the last matmul are alone."""
    links = {"pair": 1e15, "node": 1e15, "world": 1e15, held: rate / (4 if slow else 1)}
    pair = Domain("pair", 2, links["pair"], 1.0, 0.0)
    of = cluster(2, 4, links["node"], links["world"], domains=(pair,))
    matmul = 2 * 1024 * 8192 * 16384 / 650e12
    gather = 2 * 8192 * 16384 * lacks / links[held]
    wanted = gather + 40 * matmul if gather < matmul else 40 * gather + matmul
    assert (gather > matmul) == slow
    found = played(layers(40, held, 16384), of)
    assert found.seconds == pytest.approx(wanted, rel=1e-3)
    assert found.settled


def test_a_gather_does_not_run_further_ahead_than_contracts_say() -> None:
    """A layer's buffer is that of the layer two before it: the gather of layer 2 waits for the matmul of layer 0."""
    of = cluster(2, 4, 1e15, 1e15, domains=(Domain("pair", 2, 200e9, 1.0, 0.0),))
    found = played(layers(3, "pair", 16384), of)
    matmul, gather = 2 * 1024 * 8192 * 16384 / 650e12, 8192 * 16384 / 200e9
    assert gather > matmul
    # Gathers 0 and 1, then matmul 0 has ended long ago, gather 2, matmul 2.
    assert found.seconds == pytest.approx(3 * gather + matmul, rel=1e-6)


OFFLOAD = offload_text(1_000_000, 1, 8000)


def test_activations_wait_in_host_memory() -> None:
    """8 GB a layer at 20 GB/s, 0.4 s each way. The last layer's way back waits for its way there, the others follow it
    by themselves: three ways there and three back."""
    of = cluster(1, 1, host_bandwidth=20e9, host_efficiency=1.0, host_latency=0.0)
    found = played(OFFLOAD, of)
    assert found.seconds == pytest.approx(6 * 0.4, rel=1e-6)
    with pytest.raises(ValueError, match=r"cluster\.host_bandwidth is not given; transfers to and from host memory"):
        played(OFFLOAD, cluster(1, 1))


def test_a_step_of_another_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="the step is of 1 GPUs; cluster c has 2"):
        played(OFFLOAD, cluster(1, 2))


EXPERTS = """step of 0 layers on 2 GPUs and 0 host memories
layout
  index t of batch: {sizes}
  index e: 1 1
  relation route(t, e), groups {parts} and 0 1: {routes}
  tensor s: copy, none, 1 bytes, home 0
  tensor m[t]: copy, none, 16384 bytes, home {homes}
  tensor u[t,e]: copy, none, 16384 bytes, home none
  tensor b[t]: sum add, none, 16384 bytes, home {homes}
  tensor y[t]: copy, none, 1 bytes, home {homes}
  tensor wz[e]: state, none, 134217728 bytes, home 0 1
  formula m[t] = draw(s)
  formula u[t,e] = m[t] wz[e] for route(t, e)
  formula b[t] += weigh(u[t,e], wz[e]) for route(t, e)
  formula y[t] = use(b[t])
template all of layout 0
  makes m u b y
  needs s at 0-1
  needs wz[*] at home
  leaves s at 0-1
  leaves wz[*] at home
{operations}play all for layer 0
begins s at 0-1
begins wz[*] at home
ends s at 0-1
ends wz[*] at home
"""


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_experts_in_chunks(chunks: int) -> None:
    """8,192 tokens of each of two GPUs go to the other's expert and come back. All but the first chunk's way there and
    the last one's way back is behind matmuls."""
    parts = range(2 * chunks)
    home = [part // chunks for part in parts]
    lines = [f"  compute: compute m[{part}] at {home[part]}\n" for part in parts]
    turns = [part for turn in range(chunks) for part in (turn, chunks + turn)]
    lines += [f"  experts: send m[{part}] {home[part]} -> {1 - home[part]}\n" for part in turns]
    for part in turns:
        where = f"[{part},{1 - home[part]}] at {1 - home[part]}\n"
        lines += [f"  compute: compute u{where}  compute: compute b{where}"]
        lines += [f"  experts: move b[{part}] {1 - home[part]} -> {home[part]}\n"]
    lines += [f"  compute: compute y[{part}] at {home[part]}\n" for part in parts]
    text = EXPERTS.format(
        sizes=numbers([8192 // chunks] * 2 * chunks),
        parts=numbers(parts),
        homes=numbers(home),
        routes=" | ".join(str(1 - one) for one in home),
        operations="".join(lines),
    )
    matmuls, way = 2 * 2 * 8192 * 134217728 / 2 / 650e12, 8192 * 16384 / 100e9
    assert matmuls > 2 * way
    found = played(text, cluster(2, 1, nic=100e9))
    assert found.seconds == pytest.approx(matmuls + 2 * way / chunks, rel=1e-6)
    assert found.nic_tx["experts"].tolist() == [2 * 8192 * 16384] * 2


PORTS = """step of 0 layers on 2 GPUs and 0 host memories
layout
  index t of batch: 1024 1024
  index z: 1000 1000
  tensor w[z]: state, none, 100000 bytes, home 0 1
  tensor m[t]: copy, none, 100 bytes, home 0 1
  tensor v: state, none, 67108864 bytes, home 0
  tensor s[t]: copy, none, 1 bytes, home 0 1
  tensor y[t]: copy, none, 1 bytes, home 0 1
  formula s[t] = draw(v)
  formula m[t] = s[t] v
  formula y[t] = m[t] v
template all of layout 0
  makes s m y
  needs w[*] at home
  needs v at 0-1
  leaves w[*] at 0-1
  leaves v at 0-1
  compute: compute s[0] at 0
  compute: compute s[1] at 1
  parameters: gather w[*] to 0-1
  compute: compute m[0] at 0
  compute: compute m[1] at 1
  attention: send m[0] 0 -> 1
  compute: compute y[0] at 1
  compute: compute y[1] at 1
play all for layer 0
begins w[*] at home
begins v at 0-1
ends w[*] at 0-1
ends v at 0-1
"""


def test_who_waits_longest_goes_first() -> None:
    """A gather of 2 ms in 10 pieces is under way when a message of 2 us gets ready. In plan order it goes after all
    pieces, and two matmuls of 106 us after it; if who waits longest goes first, after the one under way."""
    of = cluster(1, 2, 50e9)
    matmul, message = 2 * 1024 * 67108864 / 2 / 650e12, 1024 * 100 / 50e9
    assert 50 * message < matmul < 0.2e-3
    assert played(PORTS, of).seconds == pytest.approx(2e-3 + message + 2 * matmul, rel=1e-6)
    first = replace(of, port_order=LONGEST_WAITING)
    assert played(PORTS, first).seconds == pytest.approx(2e-3 + message, rel=1e-6)


@pytest.mark.parametrize("tokens", [500, 1000])
def test_who_shares_a_port_takes_turns(tokens: int) -> None:
    """A gather of 8 ms is under way when a message of 1 or 2 ms gets ready. In plan order the message waits for all of
    the gather, and where who waits longest goes first for the piece under way. Where they share the port, both have
    half of it until the message is there, to a piece: twice its time. The gather ends by the message later, except
    where that waits for it."""
    text = PORTS.replace("z: 1000 1000", "z: 4000 4000").replace("m[t]: copy, none, 100 ", "m[t]: copy, none, 100000 ")
    step = read_step(text.replace("batch: 1024 1024", f"batch: {tokens} 1024"))
    message, matmul, piece = tokens * 1e5 / 50e9, 2 * tokens * 67108864 / 2 / 650e12, 0.2e-3
    ends = {}
    for order in PORT_ORDERS:
        program, timeline = play_layers(step, (), Cost(cluster(1, 2, 50e9, port_order=order), MODEL))
        sends = program.table[LINK_A] >= 0
        between = sends & (program.table[QUEUE_A] // program.gpu_queues != program.table[QUEUE_B] // program.gpu_queues)
        ends[order] = timeline.done[between].max(), timeline.done[sends & ~between].max()
        assert program.table[BYTES, between].sum() == tokens * 100000
    assert ends[PLAN] == pytest.approx((8e-3 + message, 8e-3), rel=1e-9)
    first, shared, gather = ends[LONGEST_WAITING][0], ends[SHARED][0], 8e-3 + message
    assert matmul + message <= first <= matmul + message + piece
    assert matmul + 2 * message - piece <= shared <= matmul + 2 * message + piece
    assert ends[LONGEST_WAITING][1] == pytest.approx(gather, rel=1e-9)
    assert ends[SHARED][1] == pytest.approx(gather, rel=1e-9)
