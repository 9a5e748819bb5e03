"""Makes the executor of a job with rollouts of a run's executor and workload, or says what does not go with it."""

from collections.abc import Mapping

from zbench.describe.job import TRAINING, RolloutJob
from zbench.describe.mask import CAUSAL
from zbench.describe.model import Model
from zbench.interfaces.abilities import HasContextLimit, HasPromptLimit
from zbench.interfaces.protocols import Executor, Workload
from zbench.simulated.executor import Simulated
from zbench.simulated.iterations import SimulatedIterations


def in_iterations(
    executor: Executor, workload: Workload, job: RolloutJob, models: Mapping[str, Model]
) -> SimulatedIterations:
    """Returns the executor of a job with rollouts, in which `executor` trains. models: that are other ones than the
    actor's, by what they are in the job.

    Raises:
        ValueError: it plays no whole steps, the workload has no rollouts, or the job does not fit.
    """
    if not isinstance(executor, Simulated):
        raise no_iterations(job)
    if workload.batch(0).rollouts is None:
        raise ValueError(
            f"workload: {type(workload).__name__} has no prompts and responses; with job=rlhf it takes one that has, "
            "as workload=rl_traces, or workload=rl_traces_file with your own"
        )
    if executor.cost.model.mask != CAUSAL:
        raise ValueError(
            f"mask is {executor.cost.model.mask}; with job=rlhf what is generated reads all before it, so it takes "
            f"{CAUSAL}"
        )
    made = SimulatedIterations.of(executor, job, models)
    if isinstance(workload, HasContextLimit) and workload.context_limit > made.kv_tokens:
        stages = job.generate_pipeline
        staged = f" and job.generate_pipeline={stages}, for each of its micro-batches," if stages > 1 else ""
        raise ValueError(
            f"workload.context_limit is {workload.context_limit}; keys and values of {made.kv_tokens} tokens have room "
            f"on a replica of job.generate_tensor={job.generate_tensor}{staged} in "
            f"job.memory_share={job.memory_share}, so it takes at most that and no longer sequences, a larger "
            "job.generate_tensor or more memory"
        )
    if isinstance(workload, HasPromptLimit):
        made.generation.check_prompts(workload.prompt_limit)
    return made


def no_iterations(job: RolloutJob) -> ValueError:
    """Returns what is told where a job has rollouts and what is run has none."""
    return ValueError(
        f"job.algorithm is {job.algorithm}; executor=simulated alone plays iterations of rollouts, parts of them are "
        "played by zbench generate, reshard and placement, and python -m zbench.correctness loop goes through them on "
        f"processes; all else takes {TRAINING.algorithm}, as in job=training"
    )
