"""Plans what an engine asks for, inside its contract, on a cluster and a model. No framework is imported."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbench.api.parts import cluster_named, model_named, told
from zbench.api.yamls import Named
from zbench.contracts.check import check_schedule
from zbench.contracts.contract import Contract, EqualTokenPermutation
from zbench.contracts.schedule import ContractError, SampleId, SampleSchedule, Schedule, TokenPermutation
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.systems.in_contract.planner import schedule_lengths


@dataclass(frozen=True, slots=True)
class Planning:
    """A planner for one job, as adapters use it. cost: of the job's model on the GPUs that share a batch."""

    cost: Cost

    @staticmethod
    def of(
        cluster: Named | Cluster, model: Named | Model, mask: str | None = None, num_nodes: int | None = None
    ) -> "Planning":
        """Makes the planner of a job. cluster, model: a name of conf/, the path of a yaml, or an object; the cluster
        has as many ranks as share a batch (data parallel x context parallel). mask: causal, full or window:N; None: the
        model's own. num_nodes: of the cluster; None: its own.

        Raises:
            ValueError: there is none of that name, or they cannot be.
        """
        with told():
            sized = cluster_named(cluster)
            sized = sized if num_nodes is None else replace(sized, num_nodes=num_nodes)
            return Planning(make_cost(sized, model_named(model, mask=mask)))

    def samples(self, samples: Sequence[tuple[SampleId, int]], contract: Contract) -> SampleSchedule:
        """Returns a schedule of samples, (id, tokens) each, that keeps to the contract.

        Raises:
            zbench.contracts.schedule.ContractError: no schedule of the contract holds these lengths.
            ValueError: the cluster is of another number of ranks.
        """
        given = SampleSchedule.of(samples, [])
        _check_some(given)
        ids = list(given.lengths)
        found = self._planned(list(given.lengths.values()), contract)
        assert isinstance(found, SampleSchedule)
        batches = tuple(
            tuple(tuple(ids[int(one)] for one in ranks) for ranks in batch) for batch in found.micro_batches
        )
        named = replace(found, lengths=given.lengths, micro_batches=batches)
        check_schedule(named, contract)
        return named

    def tokens(self, lengths: Sequence[int], ranks: int) -> TokenPermutation:
        """Returns an order of a pack's tokens of which every rank owns as many in a row, with about equal areas.

        lengths: tokens of the pack's documents, in order.

        Raises:
            zbench.contracts.schedule.ContractError: the ranks cannot share the tokens evenly.
            ValueError: the cluster is of another number of ranks.
        """
        contract = EqualTokenPermutation(ranks)
        given = SampleSchedule.of(lengths, [])
        _check_some(given)
        found = self._planned(list(given.lengths.values()), contract)
        assert isinstance(found, TokenPermutation)
        check_schedule(found, contract)
        return found

    def _planned(self, lengths: list[int], contract: Contract) -> Schedule:
        ranks = self.cost.cluster.num_ranks
        if contract.ranks != ranks:
            raise ValueError(
                f"the job has {contract.ranks} ranks that share a batch and the cluster {self.cost.cluster.name} has "
                f"{ranks}; it takes a cluster of as many: num_nodes=N, times its GPUs a node, over the model's tp"
            )
        return schedule_lengths(np.array(lengths, np.int64), contract, self.cost)


def _check_some(given: SampleSchedule) -> None:
    if not given.lengths:
        raise ContractError("there are no samples; a batch has at least one")
