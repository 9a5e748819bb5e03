"""Finds the advice, the most telling part first, so that who stops it early has an answer, too. An edge."""

from collections.abc import Callable
from dataclasses import replace

from zbench import CONF
from zbench.advise.advice import Advice, Deployed, Deployment
from zbench.advise.candidate import PinnedSystem, Tell, settle, study_of
from zbench.advise.contract import contract_values
from zbench.advise.framework import Framework, chosen, flags_of
from zbench.advise.megatron import megatron
from zbench.advise.play import Played, play, play_world, worlds_of
from zbench.advise.question import BASELINE, Question
from zbench.advise.torchtitan import torchtitan
from zbench.advise.verl import verl
from zbench.describe.units import with_noun
from zbench.describe.worlds import NOMINAL
from zbench.interfaces.study import Sample
from zbench.record.metrics import memory_verdict

_UNSAID = (
    "All of this is played with {}, which none of these flags sets: add what your framework has for it, or ask again "
    "without."
)
FRAMEWORKS: dict[str, Callable[[], Framework]] = {"megatron": megatron, "verl": verl, "torchtitan": torchtitan}


def find(question: Question, advice: Advice, tell: Callable[[str, str], None]) -> None:
    """Fills the advice: systems, what the framework can run, worlds. tell: takes what is looked at, and how far.

    Raises:
        ValueError: none of the systems can be played within memory.
    """
    advice.baseline = _played(question, BASELINE, tell)
    for name in question.systems:
        advice.systems.append(_played(question, name, tell))
    if advice.fastest is None:
        raise ValueError(_nothing(question, advice))
    if question.framework in FRAMEWORKS:
        _deploy(question, advice, FRAMEWORKS[question.framework](), tell)
    worlds = list(worlds_of(question, sorted(path.stem for path in (CONF / "world").glob("*.yaml"))))
    for number, (world, words) in enumerate(worlds, start=1):
        for one in advice.contenders:
            tell("worlds", f"{number} of {len(worlds)}, {world}: {one.candidate.name}")
            play_world(question, one, world)
        advice.worlds[world] = words
    advice.complete = True


def _played(question: Question, name: str, tell: Callable[[str, str], None]) -> Played:
    """Chooses what a system chooses before a run, and plays it; where it cannot be, says why."""
    doing = _telling(name, tell)
    try:
        candidate = settle(question, name, doing)
    except ValueError as error:
        return Played(PinnedSystem(name, name), problem=str(error))
    return play(question, candidate, doing)


def _deploy(question: Question, advice: Advice, framework: Framework, tell: Callable[[str, str], None]) -> None:
    """Plays the framework's options, each with the settings that are fastest on other batches."""
    tell(framework.name, "drawing batches to choose by")
    sample = Sample.of(study_of(question, lambda _: None))
    advice.deployment = Deployment(framework.name, framework.version)
    unsaid = question.without_flags
    for option in framework.options(question.parts().model):
        if unsaid:
            option = replace(option, notes=(*option.notes, _UNSAID.format(" ".join(unsaid))))
        doing = _telling(option.name, tell)
        try:
            candidate = chosen(question, option, sample, doing)
        except ValueError as error:
            played, flags = Played(PinnedSystem(option.name, option.system), problem=str(error)), []
        else:
            played, flags = play(question, candidate, doing), flags_of(question, option, candidate)
        advice.deployment.options.append(Deployed(option, played, flags))
    if best := advice.deployment.best:
        advice.contract = contract_values(question, advice, best, tell)


def _telling(name: str, tell: Callable[[str, str], None]) -> Tell:
    return lambda doing: tell(name, doing)


def _nothing(question: Question, advice: Advice) -> str:
    """Says that nothing can hold these lengths, with the reason that the baseline has."""
    reasons = [(one.candidate.name, one.problem or memory_verdict(one.figures) or "") for one in advice.everything]
    name, reason = next((one for one in reasons if one[0] == BASELINE), reasons[0])
    gpus = with_noun(question.parts().cluster.num_ranks, "GPU")
    return (
        f"LENGTHS has {question.longest:,} tokens at most, and no system has room for that on {gpus}; {name}: {reason}"
    )


def parts_of(question: Question) -> int:
    """Returns how many things `find` tells of: baseline, systems, the framework, its options and contract, worlds."""
    framework = FRAMEWORKS.get(question.framework)
    options = 2 + len(framework().options(question.parts().model)) if framework else 0
    return 1 + len(question.systems) + options + 1


def question_values(question: Question) -> dict[str, object]:
    """Returns the question as values of JSON."""
    parts, settings = question.parts(), question.settings
    lengths = question.lengths
    return {
        "lengths": question.path,
        "num_lengths": len(lengths),
        "longest": int(lengths.max()),
        "mean": float(lengths.mean()),
        "cluster": parts.cluster.name,
        "model": parts.model.name,
        "tensor_parallel": parts.model.tensor_parallel,
        "num_gpus": parts.cluster.num_ranks,
        "framework": question.framework,
        "systems": list(question.systems),
        "tokens_per_gpu": settings.tokens_per_gpu,
        "tokens": parts.tokens,
        "batches": settings.steps,
        "seed": settings.seed,
        "mask": settings.mask,
        "settings": list(question.words),
        "world": NOMINAL,
    }
