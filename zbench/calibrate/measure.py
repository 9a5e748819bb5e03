"""The rank's side of zbench.calibrate: runs one operation over and over, on all ranks at once, and says how fast.

Collective: every rank is called alike. Each window begins with a barrier, so that ranks which share cores or links
slow each other down as they do in a run. Nothing here knows what the numbers are for.
"""

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from zbench.calibrate.exchanges import Exchanges
from zbench.calibrate.subject import AttentionCall, RankResources, Subject, Used
from zbench.runtime.clocks.times import clock_on
from zbench.runtime.kernels.kernels import choose_kernel
from zbench.runtime.kernels.memory import DTYPES
from zbench.runtime.processes.host import cpu_name, driver
from zbench.runtime.processes.rendezvous import Rendezvous


class Measure(Exchanges):
    """One rank of a calibration; made and called by a fleet (zbench.runtime.processes.fleet)."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, subject: Subject) -> None:
        assert num_ranks == subject.num_ranks
        self.rendezvous = rendezvous
        rendezvous.board.say("opening torch.distributed")
        super().__init__(rank, subject, rendezvous.board, rendezvous.open(subject.device))
        if (sharing := rendezvous.sharing(self.device)) > 1:
            raise ValueError(f"{sharing} ranks share a GPU here; what is measured is one rank a GPU")
        self.clock = clock_on(self.device)
        self.dtype = DTYPES[subject.model.element_bytes]
        self.kernel = choose_kernel(subject.kernel, self.device, subject.model.head_dim, self.dtype)
        self.num_local = rendezvous.num_local or subject.gpus_per_node
        torch.manual_seed(rank)

    def about(self) -> RankResources:
        """Returns what this rank says of itself and its machine."""
        cuda = self.device.type == "cuda"
        return RankResources(
            host=socket.gethostname(),
            device=torch.cuda.get_device_name(self.device) if cuda else cpu_name(),
            cores=len(os.sched_getaffinity(0)),
            threads=torch.get_num_threads(),
            memory_bytes=torch.cuda.mem_get_info(self.device)[1] if cuda else _memory_bytes() // self.num_local,
            torch=str(torch.__version__),  # to unpickle its own type, the driver would import torch
            backend=dist.get_backend(),
            kernel=self.kernel.name,
            driver=driver() if cuda else "",
            multiprocessors=torch.cuda.get_device_properties(self.device).multi_processor_count if cuda else 0,
        )

    def used(self) -> Used:
        """Returns how much of the machine's processors was used so far."""
        return Used(socket.gethostname(), os.cpu_count() or 1, perf_counter(), _busy_seconds(), process_time())

    # -- on a rank: calls a second -----------------------------------------------------------------------------------
    def matmul(self, shapes: Sequence[tuple[int, int, int]], backward: bool, seconds: float) -> float:
        """Times x [rows, inputs] times w [outputs, inputs] transposed, for every shape, and returns calls a second;
        `backward`: both gradients too."""
        made = [(self._draw(rows, ins), self._draw(outs, ins), self._draw(rows, outs)) for rows, ins, outs in shapes]

        def call() -> None:
            for x, w, dy in made:
                F.linear(x, w)
                if backward:
                    dy @ w
                    dy.T @ x

        return self._pace(call, seconds)

    def attention(self, call: AttentionCall, backward: bool, seconds: float) -> float:
        """Times one layer's attention, all heads, and returns calls a second."""
        model, kernel, num = self.subject.model, self.kernel, call.segments
        q, do = (self._draw(num * call.queries, model.num_heads, model.head_dim) for _ in range(2))
        kv = self._draw(num * call.keys, 2, model.num_kv_heads, model.head_dim)
        k, v = kv[:, 0], kv[:, 1]  # as blocks of kv lie
        before = call.keys - call.queries if call.causal else call.keys
        cuts = kernel.cut(*(np.full(num, value) for value in (call.queries, before, call.causal)))
        o, lse = kernel.forward(q, k, v, cuts)
        if backward:
            return self._pace(lambda: kernel.backward(do, q, k, v, o, lse, cuts), seconds)
        return self._pace(lambda: kernel.forward(q, k, v, cuts), seconds)

    def multiply(self, rows: int, columns: int, seconds: float) -> float:
        """Times an elementwise product, two arrays read and one written, and returns calls a second."""
        a, b, c = (self._draw(rows, columns) for _ in range(3))
        return self._pace(lambda: torch.mul(a, b, out=c), seconds)

    def permute(self, rows: int, seconds: float) -> float:
        """Times copying q [rows, heads, dim] into [heads, rows, dim], and returns calls a second."""
        model = self.subject.model
        q = self._draw(rows, model.num_heads, model.head_dim)
        turned = torch.empty_like(q.transpose(0, 1), memory_format=torch.contiguous_format)
        return self._pace(lambda: turned.copy_(q.transpose(0, 1)), seconds)

    def smallest(self, seconds: float) -> float:
        """Times the smallest kernel there is, one addition, and returns calls a second."""
        x = self._draw(1)
        return self._pace(lambda: x.add_(1), seconds)

    def close(self) -> None:
        """Leaves the group of ranks."""
        self.rendezvous.close()

    # -- inside ---------------------------------------------------------------------------------------
    def _pace(self, call: Callable[[], Any], seconds: float) -> float:
        """Returns calls a second, over about `seconds`; the shorter a call, the more of them between looks at the
        clock.

        By the device's clock: on a GPU events in its stream, so that what counts is from the first of a batch of calls
        to the last, however long the host takes to hear of it.
        """
        call()
        self._together()
        calls, taken, batch = 0, 0.0, 1
        while taken < seconds:
            began = self.clock.now()
            for _ in range(batch):
                call()
            ended = self.clock.now()
            self._finish()
            one = self.clock.between(began, ended)
            calls, taken = calls + batch, taken + one
            if one < seconds / 16:
                batch *= 2
        return calls / taken

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device).to(self.dtype)


def _busy_seconds() -> float:
    """Returns the busy seconds of all processors of this machine together, since it started, stolen by a hypervisor
    too; not of interrupts, which no process is charged for and messages cause."""
    with Path("/proc/stat").open() as lines:
        user, nice, system, _idle, _wait, _irq, _softirq, stolen = map(int, lines.readline().split()[1:9])
    return float(user + nice + system + stolen) / os.sysconf("SC_CLK_TCK")


def _memory_bytes() -> int:
    """Returns the bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
