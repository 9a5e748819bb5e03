"""Keeps the instructions of templates: most steps of a run have templates that an earlier one had. Pure.

Instructions name parts, cells and places, and no tokens, so steps of other lengths have the same ones where their
batches lie on the GPUs in as many parts. What counts is what a template says, and not which object says it: steps come
from another process, each anew.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from zbench.describe.arrays import Floats
from zbench.describe.links import Lanes
from zbench.runtime.steps.compiler import compile_template, starts_of
from zbench.runtime.steps.instructions import Programs, TemplateProgram
from zbench.step.layout import StepLayout
from zbench.step.operations import COLUMN_NAMES
from zbench.step.template import ITEM_COLUMNS, Step, Template

MOST_INSTRUCTIONS = 100_000  # of a process: 50 MB of steps on four GPUs


@dataclass
class KeptPrograms:
    """The instructions of the templates that a process played last, by all that they are made of. most: instructions
    that are kept; those that were asked for longest ago go first."""

    most: int = MOST_INSTRUCTIONS
    _kept: OrderedDict[tuple[object, ...], TemplateProgram] = field(default_factory=OrderedDict)
    _size: int = 0

    def of(
        self,
        step: Step,
        process: int,
        holder: Sequence[int],
        seconds: Sequence[Floats | None] = (),
        lanes: Lanes | None = None,
        apart: bool = False,
    ) -> Programs:
        """Returns the instructions of all templates of a step for a process, for every start that they are played
        from. seconds: of each template, as of compile_template; (): no device is paced. lanes, apart: as of
        compile_template."""
        layouts = [_digest(_of_layout(one)) for one in step.layouts]
        encodings = str(step.encodings).encode()
        told = [_digest((encodings, layouts[one.layout], *_of_template(one))) for one in step.templates]
        found = {}
        for (number, start), where in starts_of(step).items():
            template = step.templates[number]
            pace = seconds[number] if seconds else None
            paced = b"" if pace is None else pace.tobytes()
            key = (
                template.name,
                template.layout,
                process,
                tuple(holder),
                tuple(where),
                told[number],
                paced,
                lanes,
                apart,
            )
            if key not in self._kept:
                self._kept[key] = compile_template(step, template, process, holder, where, pace, lanes, apart)
                self._size += len(self._kept[key].instructions)
            self._kept.move_to_end(key)
            found[number, start] = self._kept[key]
        while self._size > self.most:
            self._size -= len(self._kept.popitem(last=False)[1].instructions)
        return found


def _of_layout(layout: StepLayout) -> Iterable[bytes]:
    """Yields all of a layout that instructions are made of."""
    lists = layout.lists
    yield from (lists.of.tobytes(), lists.offsets.tobytes(), lists.parts.tobytes(), layout.shapes.tobytes())
    yield str((lists.indices, [one.name for one in layout.indices], layout.aliases)).encode()
    for part_map in layout.maps:
        yield from (f"{part_map.coarse} {part_map.fine}".encode(), part_map.part.tobytes())
    for formula in layout.formulas:
        yield str(formula).encode()
    for tensor in layout.tensors:
        yield str((tensor.name, tensor.axes, tensor.nature, tensor.layers)).encode()
        yield tensor.home.tobytes()
        yield b"" if tensor.amounts is None else (tensor.amounts > 0).tobytes()


def _of_template(template: Template) -> Iterable[bytes]:
    """Yields the operations and the contract of a template."""
    yield from (getattr(template.operations, name).tobytes() for name in COLUMN_NAMES)
    for items in (template.needs, template.leaves):
        yield from (getattr(items, name).tobytes() for name in ITEM_COLUMNS)


def _digest(parts: Iterable[bytes]) -> bytes:
    """Returns a digest that tells where each of some parts ends."""
    found = blake2b()
    for one in parts:
        found.update(len(one).to_bytes(8))
        found.update(one)
    return found.digest()
