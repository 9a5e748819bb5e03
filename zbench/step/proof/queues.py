"""The rule of queues: an operation is in a queue of its kind. What computes is in queue compute, what moves is in
one of transfers, which is `host` where one end is a host memory, and there alone. What is dropped waits for no queue.

Compiled, and linear in operations and in the members of collectives. The order in a queue needs no rule of its own: it
is that of all operations, in which each uses what earlier ones made, so no queue can wait for what stands behind it.
"""

import numba as nb

from zbench.describe.compiled import ENTERED
from zbench.step.operations import COMPUTE, DROP, GATHER, QUEUES, REDUCE
from zbench.step.proof.item_rules import WalkTables
from zbench.step.proof.template_rows import TemplateRows

_COMPUTE, _HOST = QUEUES.index("compute"), QUEUES.index("host")
_OF_GPUS = ", ".join(name for name in QUEUES if name not in ("compute", "host"))
_FINE, _COMPUTES, _TRANSFERS, _AT_HOST, _NOT_AT_HOST, _BETWEEN_HOSTS, _COLLECTIVE = range(7)
_WORDS = {
    _COMPUTES: "in a queue of transfers; what is computed takes queue compute",
    _TRANSFERS: f"in queue compute; what is transferred between GPUs takes {_OF_GPUS}",
    _AT_HOST: "to or from a host memory in a queue between GPUs; it takes queue host",
    _NOT_AT_HOST: f"between GPUs in queue host; it takes {_OF_GPUS}",
    _BETWEEN_HOSTS: "between two host memories, which no queue serves; it takes a GPU at one end",
    _COLLECTIVE: "with a host memory as a member, which no queue serves; members are GPUs",
}


def queues_fault(tables: WalkTables, rows: TemplateRows, num_gpus: int) -> tuple[int, int, str]:
    """Returns (the first of a layout's templates with an operation in a queue that does not serve its kind, the
    operation, what is wrong), (how many there are, -1, "") if there is none. rows: with numbers in range."""
    which, op, code = _first_misplaced(rows, tables.list_offsets, tables.parts, num_gpus)
    return (which, int(op), _WORDS[code]) if code else (len(rows.op_ends) - 1, -1, "")


@nb.njit(**ENTERED)
def _first_misplaced(rows, offsets, parts, gpus):  # type: ignore[no-untyped-def]
    """Returns (the first template with a fault, the operation, the fault). offsets, parts: of lists."""
    for which in range(len(rows.op_ends) - 1):
        begin = rows.op_ends[which]
        for at in range(begin, rows.op_ends[which + 1]):
            op, code = rows.ops[at], _FINE
            if op[0] == DROP:
                continue
            if op[0] == COMPUTE:
                code = _FINE if op[8] == _COMPUTE else _COMPUTES
            elif op[8] == _COMPUTE:
                code = _TRANSFERS
            elif op[0] == GATHER or op[0] == REDUCE:
                for member in parts[offsets[op[3]] : offsets[op[3] + 1]]:
                    code = _COLLECTIVE if member >= gpus else code
                code = _NOT_AT_HOST if op[8] == _HOST and code == _FINE else code
            elif op[2] >= gpus and op[3] >= gpus:
                code = _BETWEEN_HOSTS
            elif (op[2] >= gpus or op[3] >= gpus) != (op[8] == _HOST):
                code = _NOT_AT_HOST if op[8] == _HOST else _AT_HOST
            if code != _FINE:
                return which, at - begin, code
    return -1, -1, _FINE
