"""Views of a plan's operations, for reading and printing: zbench.plans.columns holds them as columns."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer, for reading: see zbench.plans.columns.Ops for the fields."""

    tensor: str
    blocks: tuple[int, ...]
    heads: tuple[int, int]
    src: int
    dst: int
    via: tuple[int, ...]
    keep: bool
    collective: bool = False

    def __str__(self) -> str:
        path = f" via lanes {','.join(map(str, self.via))}" if self.via else ""
        together = ", of a collective" if self.collective else ""
        heads = f"{self.heads[0]}:{self.heads[1]}"
        return (
            f"transfer {self.tensor} {_span(self.blocks)} heads {heads} rank {self.src} -> {self.dst}{path}{together}"
        )


@dataclass(frozen=True, slots=True)
class Attend:
    """An attend, for reading: see zbench.plans.columns.Ops for the fields."""

    rank: int
    q_blocks: tuple[int, ...]
    kv_blocks: tuple[int, ...]
    heads: tuple[int, int]

    def __str__(self) -> str:
        heads = f"{self.heads[0]}:{self.heads[1]}"
        return f"attend rank {self.rank} q {_span(self.q_blocks)} kv {_span(self.kv_blocks)} heads {heads}"


def _span(blocks: tuple[int, ...]) -> str:
    shown = ",".join(map(str, blocks[:6]))
    return f"[{shown}{',... ' + str(len(blocks)) if len(blocks) > 6 else ''}]"
