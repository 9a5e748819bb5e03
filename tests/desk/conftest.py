"""Where namespaces cannot be made, tests that need them are skipped, with the reason."""

import os

import pytest

from zbench.runtime.network.namespaces import NoDesk, new_namespace


@pytest.fixture
def namespaces() -> None:
    try:
        os.close(new_namespace())
    except NoDesk as error:
        pytest.skip(str(error))
