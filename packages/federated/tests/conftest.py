"""What all tests of the package share: Flower reports nothing to anybody."""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_DISABLE_DASHBOARD"] = "1"
