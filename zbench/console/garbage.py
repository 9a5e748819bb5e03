"""When Python looks for garbage while a command runs. An edge.

Modules and composed configurations are hundreds of thousands of objects, nearly all of which stay. Looking through them
again and again takes a tenth of a short run, so a command begins without, and goes on with what is made later alone.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Has Python look for no garbage until `collect_from_now_on` is called, or to the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def collect_from_now_on() -> None:
    """Has Python look for garbage among what is made from now on alone; does nothing where it looks for some."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
