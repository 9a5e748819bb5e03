"""Memory where something of a share of the tokens is on hosts: that share of each moment's bytes is as where it is of
all tokens, and the rest as where it is of none. What a rank has of a token at a moment depends on no other token."""

from dataclasses import replace

import numpy as np

from zbench.cost.memory.lines import MomentLine
from zbench.cost.memory.moments import StageMoments
from zbench.describe.arrays import Floats
from zbench.plans.plan import Plan


def moments_of_share(sent: StageMoments, others: StageMoments, share: float) -> StageMoments:
    """Returns the moments of a stage of whose tokens a share is as in one, and the rest as in another one."""

    def of(mine: float, rest: float) -> float:
        return share * mine + (1 - share) * rest

    def line(mine: MomentLine, rest: MomentLine) -> MomentLine:
        return mine._replace(
            constant=of(mine.constant, rest.constant),
            token=of(mine.token, rest.token),
            chunk=of(mine.chunk, rest.chunk),
            received=of(mine.received, rest.received),
            spread=of(mine.spread, rest.spread),
        )

    return replace(
        sent,
        kept=of(sent.kept, others.kept),
        received=of(sent.received, others.received),
        spread=of(sent.spread, others.spread),
        fixed=of(sent.fixed, others.fixed),
        at_work=tuple(map(line, sent.at_work, others.at_work)),
        at_loss=tuple(map(line, sent.at_loss, others.at_loss)),
        at_table=tuple(map(line, sent.at_table, others.at_table)),
    )


def shares_of_ranks(plan: Plan, shares: Floats) -> Floats:
    """Returns the share of each rank's tokens of which something is on hosts, [ranks]. shares: of each sequence's
    tokens, [sequences]."""
    blocks, tokens = plan.blocks, plan.tokens_per_rank
    sent = (blocks.stop - blocks.start) * shares[blocks.seq]
    found = np.bincount(blocks.home[blocks.block], weights=sent, minlength=plan.num_ranks)
    return np.asarray(found / np.maximum(tokens, 1))
