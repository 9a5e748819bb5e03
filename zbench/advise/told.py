"""The advice in words, for a terminal. Pure: it takes the values that --json prints (zbench.advise.advice)."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from zbench.describe.strategies.strategy_keys import typed_key
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.describe.units import with_noun

FORMAT = "zbench-advice/1"
Row = Mapping[str, Any]


def answer_lines(advice: Row) -> Iterator[str]:
    """Yields the lines of an answer."""
    asked = advice["question"]
    yield (
        f"SIMULATED: {asked['model']} on {asked['cluster']}, {with_noun(asked['num_gpus'], 'GPU')}, "
        f"{asked['tokens_per_gpu']:,} tokens a GPU; {with_noun(asked['batches'], 'batch')} drawn from "
        f"{asked['num_lengths']:,} lengths of {asked['lengths']} (longest {asked['longest']:,}). Nothing here was "
        "measured on hardware."
    )
    if not advice["complete"]:
        yield "INCOMPLETE: it was stopped; what follows is what was finished."
    rows = {row["name"]: row for row in advice["systems"]}
    best = rows.get(advice["fastest"])
    if best is None:
        yield "No system has been played to its end."
        return
    yield f"Fastest of {', '.join(rows)}: {best['name']}, {figures_told(best, advice['baseline'])}"
    yield from _stages(best)
    usual = rows.get(advice["baseline"], {})
    if usual.get("chosen"):
        yield f"  {usual['name']}: {usual['chosen']}."
    yield from (f"  {one}" for one in advice["why"])
    yield from _deployed(advice, best)
    yield from _contract(advice)
    yield from _worlds(advice, best)


def figures_told(row: Row, baseline: str | None) -> str:
    """Writes tokens a second and the speed-up over the baseline, with their intervals and the range over worlds."""
    if row["problem"]:
        return str(row["problem"])
    told = f"{row['tokens_per_second']:,.0f} simulated tokens/s"
    low, high, least = row["tokens_per_second_low"], row["tokens_per_second_high"], row["tokens_per_second_least"]
    doubts = [f"95 % over batches {low:,.0f} to {high:,.0f}"] if low is not None else []
    if least is not None:
        doubts.append(f"over worlds {least:,.0f} to {row['tokens_per_second_greatest']:,.0f}")
    told += f" ({'; '.join(doubts)})" if doubts else ""
    if row["speedup"] is not None and row["name"] != baseline:
        told += f"; {row['speedup']:.2f} x {baseline}"
        doubts = [f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}"] if row["speedup_low"] is not None else []
        doubts += [f"over worlds {_range(row)}"] if row["speedup_least"] is not None else []
        told += f" ({'; '.join(doubts)})" if doubts else ""
    return f"{told}; {row['bound_ratio']:.0%} of the bound"


def _stages(best: Row) -> Iterator[str]:
    """Says what an iteration of rollouts goes to, of which systems change scoring and training."""
    if best["stages"] is not None:
        told = sorted(best["stages"].items(), key=lambda one: -one[1])
        shares = ", ".join(f"{stage} {seconds:.4g} s" for stage, seconds in told)
        yield f"  Of an iteration, stages by themselves: {shares}. Systems change scoring and training alone."
        yield f"  The slowest replica generates {best['generation_imbalance']:.2f} times as long as the mean."


def _range(row: Row) -> str:
    return f"{row['speedup_least']:.2f} in {row['least_in']} to {row['speedup_greatest']:.2f} in {row['greatest_in']}"


def _deployed(advice: Row, best: Row) -> Iterator[str]:
    found = advice["deploy"]
    if found is None:
        yield f"To use it without a framework: {_planned(advice['question'], best)}"
        yield "  plans FILE, the lengths of one batch, as one step; zbench.torch attends by such plans in your loop."
        yield f"  {advice['question']['lengths']} is a corpus: there zbench.plan plans every batch as it comes, in a"
        yield "  process of its own one batch ahead in examples/planned_ahead.py."
        return
    options = {row["name"]: row for row in found["options"]}
    yield f"In {found['framework']} ({found['version']}):"
    for row in options.values():
        yield f"  {row['name']}: {figures_told(row, advice['baseline'])}"
    advised = options.get(found["advised"])
    if advised is None:
        yield "  none of them has room; more GPUs, parallel.tensor_parallel=2 or more, or recompute=full may."
        return
    yield f"Advised: {advised['name']}, {found['share_of_fastest']:.0%} of the speed of {best['name']}, with"
    yield from (f"    {flag}" for flag in advised["flags"])
    yield from (f"  {note}" for note in advised["notes"])


def _planned(asked: Row, best: Row) -> str:
    """Writes the command that plans a batch of lengths with the fastest system."""
    settings = [word for word in asked["settings"] if word.startswith(("cluster", "model", *STRATEGY_GROUPS, "mask"))]
    settings = [word for word in settings if not word.startswith("job")]  # of iterations, not of a step's plans
    settings += [f"{typed_key(field)}={value}" for field, value in best["model"].items()]
    settings += [f"system={best['system']}", *(f"system.{key}={value}" for key, value in best["keys"].items())]
    return shlex.join(["zbench", "plan", "FILE", "--out", "step.plan", *settings])


def _contract(advice: Row) -> Iterator[str]:
    found = advice["contract"]
    if found is None:
        return
    inside, free = found["inside"], found["any_plan"]
    bound = found["bound_tokens_per_second"]
    most = f" (no schedule inside can have more than {bound:,.0f})" if bound else ""
    yield (
        f"Contract {found['contract']} of its engine, with the same sharding: {free['name']} reaches "
        f"{free['tokens_per_second']:,.0f} tokens/s, a planner inside the contract "
        f"{inside['tokens_per_second']:,.0f}{most}. So the contract costs {found['contract_costs']:.2f} x, and the "
        f"scheduler of {found['option']} another {found['scheduler_costs']:.2f} x."
    )
    if found["default_costs"] is not None:
        limit = found["default"]["keys"]["pack_tokens"]
        yield (
            f"  The limit that users start from, {limit:,} tokens a rank, costs another {found['default_costs']:.2f} x "
            "against the one above."
        )
    if found["adapter"]:
        yield f"  {found['adapter']}"
    if found["flags"]:
        tensor = inside["model"].get("tensor_parallel", advice["question"]["tensor_parallel"])
        yield f"  The planner inside was played with tensor parallelism {tensor}; in place of the flags above it takes"
        yield from (f"    {flag}" for flag in found["flags"])


def _worlds(advice: Row, best: Row) -> Iterator[str]:
    worlds = advice["worlds"]
    if not worlds:
        return
    turned = [one for one in worlds if one["fastest"] != best["name"]]
    advised = advice["deploy"]["advised"] if advice["deploy"] else None
    other = [one for one in worlds if advised is not None and one["deployed"] != advised]
    count = with_noun(len(worlds), "world")
    yield f"Over {count}, each with one guessed or uncertain constant changed (docs/worlds.md):"
    for name, changed, of in ((best["name"], turned, "fastest"), (advised, other, "deployed")):
        if name is None:
            continue
        what = "fastest" if of == "fastest" else f"the fastest of {advice['deploy']['framework']}"
        if not changed:
            yield f"  {name} is {what} in all of them: none of these constants changes the answer."
        for one in changed:
            yield f"  {one[of]} is {what} in {one['world']} ({one['changes']}), and not {name}: measure that first."
