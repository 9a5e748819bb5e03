"""A step as text that people read; zbench.step.reading reads it back.

step of 2 layers on 4 GPUs and 0 host memories     or: of 2 layers, the first 1 of another kind, on 4 GPUs and ...
pipeline 0:0 1:2                                   of a pipeline's stages: first layer and first place; one a line
layout                                             one a micro-batch: what operations refer to
  index t of batch: 100 28 100                     parts with their sizes
  slot s of t
  map g(h): 0 0 1 1
  relation visible(t, s), groups 0 1 2 and 0 1 2: 0 | 0 1 | 2
  tensor x[t]: copy, border, 64 bytes, home 0 1 0
  formula n[t] = norm(x[t], gn)
template forward of layout 0
  makes n q kv                                     formulas, by the name of their first result
  needs x[*] at home                               the contract
  leaves x+1[*] at home
  compute: compute n[0 2] at 0                     the queue, then what is done
  attention: send kv[0,*] 0 -> 1
play forward for layers 0 to 1, from place 2       or across: of all pipelines
begins wq[*,*] at home                             of all layers; or from one on, up to the next that is named
ends wq[*,*] at home, version 1
ends wq[*,*] at 8, from layer 4, version 1
ends wq gone, from layer 6                         nothing of it
"""

from collections.abc import Iterator

from zbench.describe.arrays import Ints
from zbench.step.index import Relation
from zbench.step.layout import StepLayout
from zbench.step.lists import span_text
from zbench.step.operations import COMPUTE, DROP, GATHER, KINDS, MOVE, QUEUES, REDUCE, SEND
from zbench.step.template import ACROSS, AT_HOME, COMPLETE, GONE, USUAL_BYTES, Instance, Items, Step, Template
from zbench.step.tensor import Tensor


def step_text(step: Step) -> str:
    """Returns all of a step as text; the step is one whose numbers are in range."""
    return "".join(f"{line}\n" for line in _lines(step))


def _lines(step: Step) -> Iterator[str]:
    of = f"{step.num_layers} layers" + (f", the first {step.leading} of another kind," if step.leading else "")
    yield f"step of {of} on {step.num_gpus} GPUs and {step.num_hosts} host memories"
    for stages in step.pipelines if len(step.stages) > 1 else ():
        yield f"pipeline {' '.join(f'{one.layer}:{one.place}' for one in stages)}"
    for one in step.encodings:
        blocks = f", blocks of {one.block}" if one.block else ""
        of = f" of {one.of} bytes" if one.of != USUAL_BYTES else ""
        yield f"encoding {one.name}: {one.bits} bits{of}{blocks}{', lossy' if one.lossy else ''}"
    for layout in step.layouts:
        yield "layout"
        yield from (f"  {line}" for line in _layout(layout))
    for template in step.templates:
        yield f"template {template.name} of layout {template.layout}"
        labels = step.layouts[template.layout].labels
        yield f"  makes {' '.join(labels[formula] for formula in template.formulas) or 'nothing'}"
        for name, items in (("needs", template.needs), ("leaves", template.leaves)):
            yield from (f"  {name} {line}" for line in items_text(step, step.layouts[template.layout], items))
        for at in range(len(template.operations)):
            queue = QUEUES[int(template.operations.queue[at])]
            yield f"  {queue}: {operation_text(step, template, at)}"
    yield from (_instance(step, one) for one in step.order)
    for name, items in (("begins", step.begins), ("ends", step.ends)):
        yield from (f"{name} {line}" for line in items_text(step, step.layouts[0], items, True))


def _layout(layout: StepLayout) -> Iterator[str]:
    for index in layout.indices:
        yield f"index {index.name}{' of batch' * index.of_batch}: {_numbers(index.sizes)}"
    yield from (f"slot {slot} of {index}" for slot, index in layout.aliases)
    yield from (f"map {one.coarse}({one.fine}): {_numbers(one.part)}" for one in layout.maps)
    yield from map(_relation, layout.relations)
    yield from map(_tensor, layout.tensors)
    yield from (f"formula {formula}" for formula in layout.formulas)


def _relation(one: Relation) -> str:
    groups = int(one.second_group.max()) + 1
    rows = [span_text(one.partners[a:b], groups) for a, b in zip(one.offsets[:-1], one.offsets[1:], strict=True)]
    sides = f"groups {_numbers(one.first_group)} and {_numbers(one.second_group)}"
    return f"relation {one.name}({one.first}, {one.second}), {sides}: {' | '.join(rows)}"


def _tensor(one: Tensor) -> str:
    axes = f"[{','.join(one.axes)}]" if one.axes else ""
    merge = f" {one.merge}" if one.merge else ""
    home = "none" if (one.home < 0).all() else _numbers(one.home)
    hops = f", hops {one.hops}" if one.hops else ""
    amounts = "" if one.amounts is None else f", amounts {_numbers(one.amounts)}"
    amounts += f", counted by {one.counted_by}" if one.counted_by else ""
    return f"tensor {one.name}{axes}: {one.nature}{merge}, {one.layers}, {one.unit} bytes, home {home}{hops}{amounts}"


def _numbers(values: Ints) -> str:
    return " ".join(map(str, values.tolist()))


def _instance(step: Step, one: Instance) -> str:
    version = f", version {one.version}" if one.version else ""
    version += ", across" if one.place == ACROSS else f", from place {one.place}" if one.place else ""
    name = step.templates[one.template].name
    if one.repeats == 1:
        return f"play {name} for layer {one.layer}{version}"
    return f"play {name} for layers {one.layer} to {one.layer + one.stride * (one.repeats - 1)}{version}"


def operation_text(step: Step, template: Template, at: int) -> str:
    """Returns an operation of a template as text, without its queue."""
    ops, layout = template.operations, step.layouts[template.layout]
    kind, what = int(ops.kind[at]), int(ops.what[at])
    names = layout.labels if kind == COMPUTE else tuple(one.name for one in layout.tensors)
    lists = [int(ops.list0[at]), int(ops.list1[at]), int(ops.list2[at])]
    axes = [_list(layout, which) for which in lists if which >= 0]
    offset = f"{int(ops.layer[at]):+d}" if ops.layer[at] else ""
    words = f"{KINDS[kind]} {names[what]}{offset}{f'[{chr(44).join(axes)}]' if axes else ''}"
    if kind in (COMPUTE, DROP):
        words += f" at {ops.src[at]}"
    elif kind in (SEND, MOVE):
        words += f" {ops.src[at]} -> {ops.dst[at]}"
    elif kind in (GATHER, REDUCE):
        words += f" {'to' if kind == GATHER else 'of'} {span_text(layout.lists[int(ops.dst[at])], step.num_places)}"
        words += f", homes every {ops.src[at]}" if ops.src[at] >= 0 else ""
    version = f", version {ops.version[at]}" if ops.version[at] else ""
    encoding = f", encoding {step.encodings[int(ops.encoding[at])].name}" if ops.encoding[at] >= 0 else ""
    lanes = f", lanes {span_text(layout.lists[int(ops.via[at])], 0)}" if ops.via[at] >= 0 else ""
    return f"{words}{version}{encoding}{lanes}"


def _list(layout: StepLayout, which: int) -> str:
    """Returns a list as text."""
    index = layout.lists.index_of(which)
    return span_text(layout.lists[which], len(layout.index[index]) if index in layout.index else 0)


def items_text(step: Step, layout: StepLayout, items: Items, resting: bool = False) -> Iterator[str]:
    """Yields the entries of a contract as text. resting: of what a step begins or ends with, whose layers are the first
    ones that entries are of."""
    for tensor, layer, places, list0, list1, count, version, hops in items.rows():
        axes = [_list(layout, which) for which in (list0, list1) if which >= 0]
        words = f"{layout.tensors[tensor].name}{f'{layer:+d}' if layer and not resting else ''}"
        words += f"[{','.join(axes)}]" if axes else ""
        if places == GONE:
            words += " gone"
        else:
            words += " at home" if places == AT_HOME else f" at {span_text(layout.lists[places], step.num_places)}"
        words += f", from layer {layer}" if layer and resting else ""
        if count:
            words += ", complete" if count == COMPLETE else f", count {count}"
        yield words + (f", version {version}" if version else "") + (f", hops {hops}" if hops else "")
