"""Devices by name."""

import pytest

torch = pytest.importorskip("torch")

from hexad.core.devices import find_device  # noqa: E402
from hexad.core.errors import InputError  # noqa: E402


def test_devices_that_are_there():
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("meta").type == "meta"
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["warp", "cuda:77", "", "xpu", "mps"])
def test_devices_that_are_not(name):
    with pytest.raises(InputError, match=rf"device '{name}' cannot be used here \(.*\); try cpu") as caught:
        find_device(name)
    assert "\n" not in str(caught.value)
