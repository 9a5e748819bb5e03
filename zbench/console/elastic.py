"""Passes a sentence about a process that failed to torchrun, which prints it last. Torch-free.

torchrun names a file to each process (TORCHELASTIC_ERROR_FILE, of torch.distributed.elastic.multiprocessing.errors)
and ends its own report, some thirty lines, with what the process that failed first wrote there.
"""

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def tell(environment: Mapping[str, str], message: str) -> None:
    """Has torchrun print `message` too, last. environment: os.environ; without torchrun nothing happens."""
    if path := environment.get(ERROR_FILE):
        with contextlib.suppress(OSError):  # it was told on standard error in any case
            told = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
            Path(path).write_text(json.dumps({"message": told}))
