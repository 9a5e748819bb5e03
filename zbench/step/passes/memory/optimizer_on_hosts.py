"""Optimizer state in host memory, where a node's CPUs update parameters (ZeRO-Offload, arXiv 2101.06840), and
parameters that rest there (AutoHete, arXiv 2503.01890); of all layers, or of some.

A pass over a built step. The optimizer state of what has its home on a GPU is in its node's host memory, and so is each
such parameter once more, as GPUs have it: copies go from there. As soon as a layer's gradients are complete, in the
last micro-batch's backward, they are sent to the host; its CPUs update the layer, and its parameters are sent back to
their home (zbench.step.passes.memory.host_updates). Nothing is used before it is there: an update is the same, and no
step late. Of which layers: zbench.step.passes.memory.at_hosts.HostLayers; a template whose layers are of several kinds
takes a form for each of them.
"""

from dataclasses import replace

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.layers.on_hosts import AS_GRADIENTS_COME
from zbench.step.lists import ListTable
from zbench.step.passes.memory.at_hosts import HostItems, HostLayers, OnHosts
from zbench.step.passes.memory.by_layers import by_layers
from zbench.step.passes.memory.host_updates import ENDS, HEAD, UPDATES, HostUpdates
from zbench.step.passes.memory.kept_on_hosts import gpus_of_a_host
from zbench.step.passes.parameters.tied_tables import has_two_tables, places_of_tables
from zbench.step.template import ACROSS, Step, Template


def with_optimizer_on_hosts(
    step: Step, gpus_per_node: int, layers: HostLayers | None = None, when: str = AS_GRADIENTS_COME
) -> Step:
    """Returns a step whose optimizer state, or parameters, rest in host memory. layers: of which; None: the optimizer
    state of all. when: CPUs update, of zbench.describe.layers.on_hosts.

    Raises:
        ValueError: parameters are updated on several GPUs, or two tables in pipelines side by side.
    """
    if has_two_tables(step) and any(one.place == ACROSS for one in step.order):
        raise ValueError(
            "memory has optimizer state or parameters on hosts, and model.tied_embeddings is true; side by side, "
            "pipelines then have one stage each, as no host updates a table on two stages of one of several"
        )
    layers = HostLayers(step.num_layers, step.num_layers) if layers is None else layers
    each = gpus_of_a_host(step, gpus_per_node)
    num_hosts = -(-step.num_gpus // each)
    every, homes = list[HostItems](), _homes_of_pipelines(step)
    for number, layout in enumerate(step.layouts):
        sizes = {one.name: len(one) for one in layout.indices}
        lists = ListTable.of(layout.lists, sizes, step.num_gpus + num_hosts)
        of_layout = step.num_gpus, each, layers, step.leading, homes.get(number, {})
        every.append(HostItems(layout, lists, *of_layout, has_two_tables(step)))

    def changed(number: int, kinds: dict[int, OnHosts]) -> Template:
        template = step.templates[number]
        updates = template.name in (*UPDATES, *ENDS, HEAD)
        return every[template.layout].changed(template, kinds.__getitem__, updates)

    offsets = [every[one.layout].offsets(one) for one in step.templates]
    templates, order, of = by_layers(step.templates, step.order, offsets, layers.of_layer, changed)
    own = [one for one in step.templates if one.name in (*UPDATES, *ENDS, HEAD)]
    of_gradients = [(step.layouts[one.layout].tensors[row[0]].name, row[7]) for one in own for row in one.needs.rows()]
    begins = every[0].resting(step.begins, dict(of_gradients), True)
    ends = every[0].resting(step.ends, dict(of_gradients))
    if layers.optimizer:
        names = [step.templates[number].name.split(".")[0] for number in of]
        played = {one.template: layers.of_layer(one.layer) for one in order if names[one.template] in UPDATES}
        rest = next(number for number, name in enumerate(names) if name in ENDS)
        head = names.index(HEAD) if HEAD in names else -1
        updates = HostUpdates(every, templates[rest].layout, when)
        updates.put(templates, {number: kind for number, kind in played.items() if kind.state}, rest, head)
        order = updates.ordered(order, templates, names)
    return replace(
        step,
        num_hosts=num_hosts,
        layouts=tuple(replace(one.layout, tensors=one.tensors, lists=one.lists.lists()) for one in every),
        templates=tuple(templates),
        order=tuple(order),
        begins=begins,
        ends=ends,
    )


def _homes_of_pipelines(step: Step) -> dict[int, dict[str, Ints]]:
    """Returns, by the number of each micro-batch's layout, the homes of cells of what rests between steps where these
    are told by a layout of all pipelines alone: by names, places counted from the first of the pipeline, -1 where
    another one has them; and of two tables' layout those of what is on the last stage."""
    if moved := places_of_tables(step):
        tables = step.layouts[-1]
        return {
            len(step.layouts) - 1: {name: tables.tensors[tables.number[name]].home + by for name, by in moved.items()}
        }
    if all(one.place != ACROSS for one in step.order):
        return {}
    common, found = step.layouts[-1], dict[int, dict[str, Ints]]()
    for one in step.order:
        layout = step.templates[one.template].layout
        if one.place != ACROSS and layout not in found:
            pipeline = int(step.pipeline_of[one.place])
            lead = step.pipelines[pipeline][0].place
            found[layout] = {
                tensor.name: np.where(step.pipeline_of[tensor.home] == pipeline, tensor.home - lead, -1)
                for tensor in common.tensors
                if tensor.nature == "state"
            }
    return found
