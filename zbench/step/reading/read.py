"""Reads a step from the text that zbench.step.text writes. A fault is one sentence with line and column."""

from dataclasses import dataclass, field, replace

from zbench.step.layout import StepLayout
from zbench.step.lists import LANE, PLACE, ListTable
from zbench.step.operations import COMPUTE, DROP, GATHER, KINDS, MOVE, QUEUES, REDUCE, SEND, Operations
from zbench.step.reading.layouts import LINES, PartialLayout
from zbench.step.reading.scanner import Scanner, TextFault
from zbench.step.template import (
    ACROSS,
    AT_HOME,
    COMPLETE,
    GONE,
    USUAL_BYTES,
    Encoding,
    Instance,
    Items,
    StageStart,
    Step,
    Template,
)

_MOST_LAYERS, _MOST_PLACES = 2**16, 2**20  # more than any step has, and tables of them fit in memory


def read_step(text: str) -> Step:
    """Returns the step of a text; whether it is correct is for zbench.step.proof.prove to say.

    Raises:
        TextFault: a line says nothing that a step has; the message names line and column.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            scanner = Scanner(line, number)
            reader.line(scanner)
            scanner.end()
    return reader.step(len(text.splitlines()) + 1)


@dataclass
class _Body:
    """A template while it is read."""

    name: str
    layout: int
    formulas: list[int] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)
    items: dict[str, list[list[int]]] = field(default_factory=lambda: {"needs": [], "leaves": []})


class _Reader:
    """The parts of a step, collected line by line."""

    def __init__(self) -> None:
        self.sizes: tuple[int, int, int, int] | None = None
        self.encodings: list[Encoding] = []
        self.layouts: list[PartialLayout] = []
        self.templates: list[_Body] = []
        self.order: list[Instance] = []
        self.stages: list[StageStart] = []
        self.items: dict[str, list[list[int]]] = {"begins": [], "ends": []}
        self.methods = {
            "step": self._head, "encoding": self._encoding, "layout": self._new_layout, "template": self._template,
            "makes": self._makes, "play": self._play, "pipeline": self._stages,
        }  # fmt: skip

    def line(self, scanner: Scanner) -> None:
        """Takes a line."""
        word = scanner.word("a word that a line begins with")
        if word != "step" and self.sizes is None:
            raise scanner.fault("a step begins with a line such as: step of 2 layers on 4 GPUs and 0 host memories", 0)
        if word in self.methods:
            self.methods[word](scanner)
        elif word in LINES:
            LINES[word](self._part(scanner), scanner)
        elif word in self.items:
            if not self.layouts:
                raise scanner.fault(f"{word} stands after a layout", 0)
            self._entry(scanner, self.layouts[0], self.items[word], True)
        elif word in ("needs", "leaves"):
            body = self._body(scanner)
            self._entry(scanner, self.layouts[body.layout], body.items[word])
        elif word in QUEUES:
            scanner.take(":")
            self._operation(scanner, QUEUES.index(word))
        else:
            known = ", ".join([*self.methods, *LINES, *self.items, "needs", "leaves", *QUEUES[1:]])
            raise scanner.fault(f"no line begins with {word!r}; it takes {known}", scanner.at - len(word))

    def _head(self, scanner: Scanner) -> None:
        scanner.take("of")
        layers = scanner.integer("the number of layers")
        scanner.take("layers")
        leading = 0
        if scanner.has(","):
            scanner.take("the first")
            leading = scanner.integer("a number of layers")
            scanner.take("of another kind")
            scanner.take(",")
        scanner.take("on")
        gpus = scanner.integer("the number of GPUs")
        scanner.take("GPUs")
        scanner.take("and")
        hosts = scanner.integer("the number of host memories")
        scanner.take("host memories")
        if layers < 0 or gpus < 1 or hosts < 0:
            raise scanner.fault("a step has layers and host memories, or none, and at least one GPU", 0)
        if layers > _MOST_LAYERS or gpus + hosts > _MOST_PLACES:
            raise scanner.fault(
                f"it has {layers:,} layers on {gpus:,} GPUs and {hosts:,} host memories; a step has at most "
                f"{_MOST_LAYERS:,} layers, and {_MOST_PLACES:,} GPUs and host memories together",
                0,
            )
        self.sizes = (layers, gpus, hosts, leading)

    def _encoding(self, scanner: Scanner) -> None:
        name = scanner.word("the name of an encoding")
        scanner.take(":")
        bits = scanner.integer("a number of bits")
        scanner.take("bits")
        of, block, lossy = USUAL_BYTES, 0, False
        if scanner.has("of"):
            of = scanner.integer("bytes of a value")
            scanner.take("bytes")
        while scanner.has(","):
            if scanner.take("lossy", "blocks of") == "lossy":
                lossy = True
            else:
                block = scanner.integer("the values of a block")
        if bits < 1 or of < 1 or block < 0:
            raise scanner.fault("an encoding has bits, bytes and values of at least 1", 0)
        self.encodings.append(Encoding(name, bits, lossy, of, block))

    def _stages(self, scanner: Scanner) -> None:
        words, at = scanner.rest()
        for word in words.split():
            layer, _, place = word.partition(":")
            if not (layer.isascii() and layer.isdigit() and place.isascii() and place.isdigit()):
                raise scanner.fault(f"it has {word!r} where it takes a stage's first layer and place, such as 4:8", at)
            self.stages.append(StageStart(int(layer), int(place)))

    def _new_layout(self, scanner: Scanner) -> None:
        assert self.sizes is not None
        self.layouts.append(PartialLayout(self.sizes[1] + self.sizes[2]))

    def _part(self, scanner: Scanner) -> PartialLayout:
        if not self.layouts or self.layouts[-1].made is not None:
            raise scanner.fault("this stands in a layout, before all templates", 0)
        return self.layouts[-1]

    def _body(self, scanner: Scanner) -> _Body:
        if not self.templates:
            raise scanner.fault("this stands in a template", 0)
        return self.templates[-1]

    def _template(self, scanner: Scanner) -> None:
        name = scanner.word("the name of a template")
        if any(one.name == name for one in self.templates):
            raise scanner.fault(f"there is a template {name} already", scanner.at - len(name))
        scanner.take("of layout")
        number = scanner.integer("the number of a layout")
        if not 0 <= number < len(self.layouts):
            right = f"it takes 0 to {len(self.layouts) - 1}" if self.layouts else "a layout stands before templates"
            raise scanner.fault(f"there is no layout {number}; {right}", scanner.at - len(str(number)))
        self.layouts[number].finished()
        self.templates.append(_Body(name, number))

    def _layout(self, scanner: Scanner) -> tuple[StepLayout, ListTable]:
        return self.layouts[self._body(scanner).layout].finished()

    def _makes(self, scanner: Scanner) -> None:
        body, labels = self._body(scanner), self._layout(scanner)[0].labels
        if scanner.has("nothing"):
            return
        while (name := scanner.next(r"[A-Za-z_][\w~.]*")) is not None:
            if name not in labels:
                raise scanner.fault(f"there is no formula {name}", scanner.at - len(name))
            body.formulas.append(labels.index(name))

    def _cells(self, scanner: Scanner, lists: ListTable, names: list[str]) -> list[int]:
        """Takes lists of parts in brackets, one for each index, and returns their numbers, padded to three."""
        found = []
        for at, name in enumerate(names):
            scanner.take("[" if at == 0 else ",")
            found.append(scanner.listed(lists, name))
        if names:
            scanner.take("]")
        return [*found, -1, -1, -1][:3]

    def _named(self, scanner: Scanner, layout: StepLayout) -> tuple[int, int]:
        """Takes the name of a tensor and an offset of layers."""
        name = scanner.match(r"[A-Za-z_]\w*~?", "the name of a tensor")
        if name not in layout.number:
            raise scanner.fault(f"there is no tensor {name}", scanner.at - len(name))
        offset = scanner.next(r"[+-]\d{1,4}(?!\d)")
        return layout.number[name], int(offset or 0)

    def _operation(self, scanner: Scanner, queue: int) -> None:
        body, (layout, lists) = self._body(scanner), self._layout(scanner)
        kind = KINDS.index(scanner.take(*KINDS))
        layer = 0
        if kind == COMPUTE:
            name = scanner.match(r"[A-Za-z_]\w*~?(\.\d+)?", "the name of a formula")
            if name not in layout.labels:
                raise scanner.fault(f"there is no formula {name}", scanner.at - len(name))
            what = layout.labels.index(name)
            names = [layout.index_of(slot) for slot in layout.formulas[what].slots]
        else:
            what, layer = self._named(scanner, layout)
            names = list(layout.tensors[what].axes)
        cells = self._cells(scanner, lists, names)
        src, dst = self._ends(scanner, kind, lists)
        version, encoding, via = 0, -1, -1
        while scanner.has(","):
            word = scanner.take("version", "encoding", "lanes", *(["homes every"] if kind in (GATHER, REDUCE) else []))
            if word == "version":
                version = scanner.integer()
            elif word == "homes every":
                src = scanner.integer()
            elif word == "lanes":
                via = scanner.listed(lists, LANE)
            else:
                name = scanner.word("the name of an encoding")
                known = [one.name for one in self.encodings]
                if name not in known:
                    raise scanner.fault(f"there is no encoding {name}", scanner.at - len(name))
                encoding = known.index(name)
        body.rows.append([kind, what, src, dst, *cells, layer, queue, version, encoding, via])

    def _ends(self, scanner: Scanner, kind: int, lists: ListTable) -> tuple[int, int]:
        """Takes where an operation is, or from where to where."""
        if kind in (COMPUTE, DROP):
            scanner.take("at")
            return scanner.integer("a place"), -1
        if kind in (SEND, MOVE):
            src = scanner.integer("a place")
            scanner.take("->")
            return src, scanner.integer("a place")
        scanner.take("to" if KINDS[kind] == "gather" else "of")
        return -1, scanner.listed(lists, PLACE)

    def _entry(self, scanner: Scanner, part: PartialLayout, rows: list[list[int]], resting: bool = False) -> None:
        """Takes an entry of a contract. resting: of what a step begins or ends with."""
        layout, lists = part.finished()
        what, layer = self._named(scanner, layout)
        if resting and scanner.has("gone"):
            cells, places = [-1, -1], GONE
        else:
            cells = self._cells(scanner, lists, list(layout.tensors[what].axes))[:2]
            scanner.take("at")
            places = AT_HOME if scanner.has("home") else scanner.listed(lists, PLACE)
        numbers = {"count": 0, "version": 0, "hops": 0}
        while scanner.has(","):
            word = scanner.take("complete", *(["from layer"] if resting else []), *numbers)
            if word == "complete":
                numbers["count"] = COMPLETE
            elif word == "from layer":
                layer = scanner.integer("a layer")
            else:
                numbers[word] = scanner.integer()
        rows.append([what, layer, places, *cells, numbers["count"], numbers["version"], numbers["hops"]])

    def _play(self, scanner: Scanner) -> None:
        name = scanner.word("the name of a template")
        names = [one.name for one in self.templates]
        if name not in names:
            raise scanner.fault(f"there is no template {name}", scanner.at - len(name))
        scanner.take("for")
        several = scanner.take("layers", "layer") == "layers"
        first = last = scanner.integer("a layer")
        if several:
            scanner.take("to")
            last = scanner.integer("a layer")
        version = place = 0
        while scanner.has(","):
            word = scanner.take("version", "from place", "across")
            if word == "version":
                version = scanner.integer()
            else:
                place = ACROSS if word == "across" else scanner.integer("a place")
        if max(abs(first), abs(last)) > _MOST_LAYERS:
            raise scanner.fault(f"{name} is for layers {first:,} to {last:,}; a step has at most {_MOST_LAYERS:,}", 0)
        stride = -1 if last < first else 1
        self.order.append(Instance(names.index(name), first, abs(last - first) + 1, stride, version, place))

    def step(self, line: int) -> Step:
        """Returns the step of all lines. line: the number of the one after the last."""
        if self.sizes is None or not self.layouts:
            raise TextFault(
                f"line {line}, column 1: the text ends before there is a {'layout' if self.sizes else 'step'}"
            )
        for number, one in enumerate(self.layouts):
            if not one.tensors:
                raise TextFault(f"line {line}, column 1: the text ends, and layout {number} has no tensor")
        made = [one.finished() for one in self.layouts]
        layers, gpus, hosts, leading = self.sizes
        return Step(
            gpus,
            hosts,
            layers,
            tuple(self.encodings),
            tuple(replace(layout, lists=lists.lists()) for layout, lists in made),
            tuple(
                Template(
                    one.name,
                    one.layout,
                    Operations.of(one.rows),
                    tuple(one.formulas),
                    Items.of(one.items["needs"]),
                    Items.of(one.items["leaves"]),
                )
                for one in self.templates
            ),
            tuple(self.order),
            Items.of(self.items["begins"]),
            Items.of(self.items["ends"]),
            tuple(self.stages) or (StageStart(0, 0),),
            leading,
        )
