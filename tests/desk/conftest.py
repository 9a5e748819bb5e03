"""Where namespaces cannot be made, tests that need them are skipped, with the reason."""

import os

import pytest

from zbench.runtime.network.namespaces import NoDesk, made


@pytest.fixture
def namespaces() -> None:
    try:
        os.close(made())
    except NoDesk as error:
        pytest.skip(str(error))
