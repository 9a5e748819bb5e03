"""Choice of the placements that are looked into, and of their layouts that are played (step 4 of docs/planner.md)."""

from zbench.systems.nodewise.layout import Layout
from zbench.systems.nodewise.placements import Placement, by_narrow_nics
from zbench.systems.nodewise.trial import Task

# Placements whose nodes are looked into: most of nodes by themselves, of groups of them, of nodes that stay uneven.
LOOKED, LOOKED_WIDE, LOOKED_UNEVEN = 6, 4, 3
LOOKED_CAREFUL, TIE = 2, 1.01  # and of those that need NICs least, which count if so near the best estimate (a choice)
TRIED_UNEVEN = 2  # uneven layouts that are built and played beside the others (a choice)
NEAR = 1.1  # times the best estimate: within it the best of every kind is played


def worth_a_look(found: list[Placement], uneven: list[Placement]) -> list[Placement]:
    """Picks the placements whose nodes are looked into. found, uneven: the best estimates first."""
    wide, narrow = ([one for one in found if (one.rule.wide > 1) == kind] for kind in (True, False))
    return narrow[:LOOKED] + wide[:LOOKED_WIDE] + uneven[:LOOKED_UNEVEN]


def worth_a_play(layouts: list[Layout], tries: int) -> list[Layout]:
    """Picks the layouts that are played, the best estimate first.

    Of layouts with even nodes these are the best, then the best of every other kind that is not far behind, then
    others, up to `tries`; and the best that leave nodes uneven. Estimates of one kind are off in the same direction.
    Equal estimates are of the same layout with nodes in another order.
    """
    even, uneven = (
        _distinct([one for one in layouts if (one.placement.rule.full > 1) == kind]) for kind in (False, True)
    )
    kinds: dict[tuple[bool, bool], Layout] = {}
    for one in even:
        if one.seconds < NEAR * even[0].seconds:
            kinds.setdefault((one.placement.rule.first, one.placement.rule.wide > 1), one)
    chosen = list(kinds.values())
    chosen = (chosen + [one for one in even if all(one is not other for other in chosen)])[:tries]
    both = chosen, uneven[:TRIED_UNEVEN]
    first, second = both if not uneven or (chosen and chosen[0].seconds <= uneven[0].seconds) else both[::-1]
    return first + second


def least_keys(task: Task, found: list[Placement], played: list[Layout]) -> Layout | None:
    """Finds, of layouts with about the best estimate, the one that needs NICs least, unless it is among those played.

    Only where one peer cannot have all that GPUs have of NICs: estimates take keys to leave by all of them at once,
    and are off by more the more keys there are.
    """
    if task.nodes.num_nodes == 1 or task.nodes.one_peer == 1 or not found:
        return None
    first = by_narrow_nics(found, task.placed, task.nodes)[:LOOKED_CAREFUL]
    best = min((task.layout(one) for one in first), key=lambda one: one.seconds)
    is_new = all(abs(best.seconds / one.seconds - 1) > 1e-9 for one in played)
    return best if is_new and best.seconds < TIE * min(one.seconds for one in played) else None


def _distinct(layouts: list[Layout]) -> list[Layout]:
    """One of each estimate, the best first."""
    least = min((one.seconds for one in layouts), default=0.0)
    found = {round(one.seconds / least, 9): one for one in reversed(layouts)}
    return sorted(found.values(), key=lambda one: one.seconds)
