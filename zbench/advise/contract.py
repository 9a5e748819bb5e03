"""The cost of a framework's contract, and of its scheduler inside the contract. An edge.

Three plans of the same batches are compared: any that a planner makes, the best that a planner makes inside the
contract of the framework's engine (zbench.contracts), and what the framework's own scheduler makes. All have the
sharding that the engine has. Degrees of tensor parallelism are those configured, or the one that the framework's option
was chosen with, whichever is faster. Where a framework can take the planner, it is played within the limit of a rank's
tokens that its flags have.
"""

from collections.abc import Callable

from zbench.advise.advice import Advice, Deployed, Values
from zbench.advise.candidate import PinnedSystem
from zbench.advise.framework import Keys, Option, flags_of
from zbench.advise.play import Played, play
from zbench.advise.question import Question
from zbench.contracts.bound import contract_bound_seconds
from zbench.contracts.contract import Contract, contract_named
from zbench.cost.cost import Cost
from zbench.describe.worlds import NOMINAL
from zbench.run.parts import Parts

PLANNER = "in_contract"


def contract_values(
    question: Question, advice: Advice, deployed: Deployed, tell: Callable[[str, str], None]
) -> Values | None:
    """Returns what the contract and the scheduler of the advised option cost, as docs/advise.md has it; None where the
    option has no contract that is told, or no plan fits."""
    option = deployed.option
    planners = [one for one in advice.everything if one.fits and one is not advice.baseline]
    if option.contract is None or not planners:
        return None
    keys, own = option.contract(deployed.played.candidate.keys), planners[0].candidate
    any_plan = _faster(question, own, lambda _: own.keys, deployed, tell)
    planner = PinnedSystem("planner inside", PLANNER)
    inside = _faster(question, planner, lambda cost: _limited(keys, option, cost, question), deployed, tell)
    if any_plan is None or inside is None:
        return None
    bound = None if question.parts().job.has_rollouts else _bound(question, inside.candidate)  # which is of training
    default = _default(question, option, deployed, tell)
    speeds = [one.figures.tokens_per_second or 0.0 for one in (any_plan, inside, deployed.played)]
    return {
        "contract": keys["contract"],
        "keys": dict(inside.candidate.keys),
        "option": option.name,
        "adapter": option.adapter,
        "flags": _flags(question, option, inside.candidate),
        "any_plan": advice.row(any_plan),
        "inside": advice.row(inside),
        "default": advice.row(default) if default else None,
        "contract_costs": speeds[0] / speeds[1],
        "scheduler_costs": speeds[1] / speeds[2],
        "default_costs": deployed.played.gain(default) if default else None,
        "bound_tokens_per_second": bound and question.parts().tokens * question.settings.steps / bound,
    }


def _limited(keys: Keys, option: Option, cost: Cost, question: Question) -> Keys:
    """Returns the keys of the planner inside, with the limit that the framework would be given."""
    return keys if option.limit is None else {**keys, "max_tokens": option.limit(cost, question.longest)}


def _flags(question: Question, option: Option, inside: PinnedSystem) -> list[str]:
    """Returns the flags with which the framework runs what was played of the planner inside; none where it cannot take
    that planner."""
    if option.limit is None:
        return []
    keys = {"pack_tokens": inside.keys["max_tokens"]}
    return flags_of(question, option, PinnedSystem(option.name, option.system, keys, inside.model))


def _faster(
    question: Question,
    candidate: PinnedSystem,
    keys: Callable[[Cost], Keys],
    deployed: Deployed,
    tell: Callable[[str, str], None],
) -> Played | None:
    """Plays a candidate with the option's sharding, with the configured and with the option's tensor parallelism;
    returns the faster that fits. keys: of the candidate, for a cost model."""
    wide = dict(deployed.played.candidate.model)
    plain = {key: value for key, value in wide.items() if key != "tensor_parallel"}
    found = []
    for model in [plain, wide] if wide != plain else [plain]:
        one = PinnedSystem(candidate.name, candidate.system, keys(question.parts(model).cost), model)
        found.append(play(question, one, lambda doing: tell("contract", f"{candidate.name}: {doing}")))
    fitting = [one for one in found if one.fits]
    return min(fitting, key=lambda one: one.figures.step_seconds or 0.0, default=None)


def _default(question: Question, option: Option, deployed: Deployed, tell: Callable[[str, str], None]) -> Played | None:
    """Plays the option with the limit that its users start from; None where it has none, or does not fit."""
    if option.default is None:
        return None
    own = deployed.played.candidate
    parts = question.parts(own.model)
    keys: Keys = {**own.keys, **option.default(parts.cost, parts.tokens, question.longest)}
    found = play(
        question,
        PinnedSystem(f"{option.name}, default", own.system, keys, own.model),
        lambda doing: tell("contract", f"default limit: {doing}"),
    )
    return found if found.fits else None


def _bound(question: Question, candidate: PinnedSystem) -> float:
    """Returns the seconds that no schedule inside the contract can beat, over all batches."""
    parts = question.parts(candidate.model, NOMINAL)
    contract = _contract(candidate.keys, parts)
    steps = range(question.settings.steps)
    return sum(contract_bound_seconds(parts.batch(number), contract, parts.cost) for number in steps)


def _contract(keys: Keys, parts: Parts) -> Contract:
    """Returns the contract that a planner inside it has by these keys."""
    name, degree = str(keys["contract"]), int(keys.get("degree", 1))
    return contract_named(name, degree if name == "equal_token_permutation" else parts.cost.cluster.num_ranks // degree)
