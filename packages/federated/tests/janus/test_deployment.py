"""A federation of real processes: Flower's SuperLink and a SuperNode for S_1 and for each client.

One client is killed in mid-round and S_1 between rounds; what the clients then hold is checked by hand.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from hexad.federated.janus import JanusConfig, Keys
from hexad.federated.janus.session_file import SessionFile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]

STEPS = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.6}
"""What each client adds to the model in a round."""

PROJECT = """
[project]
name = "janus-app"
version = "1.0.0"
description = "A federation that is killed"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "hexad"

[tool.flwr.app.components]
serverapp = "killed.server_app:app"
clientapp = "killed.client_app:app"

[tool.flwr.app.config]
folder = ""
"""

SERVER = """
import json
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from hexad.federated.janus import JanusStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    folder = Path(context.run_config["folder"])
    keys, state = folder / "s0.key.json", folder / "state-s0"
    strategy = JanusStrategy(folder / "session.json", keys, state, evaluate=False)
    result = strategy.start(grid, ArrayRecord([np.zeros(4)]), num_rounds=4, timeout=150)
    counts = {number: dict(metrics) for number, metrics in result.train_metrics_clientapp.items()}
    (folder / "counts.json").write_text(json.dumps(counts))
"""

CLIENT = """
import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hexad.federated.janus import add_janus, janus_mod

app = ClientApp(mods=[janus_mod])
add_janus(app)


@app.train()
def train(message, context):
    folder, name = Path(context.run_config["folder"]), context.node_config["name"]
    number = message.content["config"]["server-round"]
    arrays = message.content["arrays"].to_numpy_ndarrays()
    np.save(folder / f"model-{name}-{number}.npy", arrays[0])
    if (name, number) == ("d", 2):
        time.sleep(100)  # until it is killed
    step = json.loads((folder / "steps.json").read_text())[name]
    metrics = MetricRecord({"num-examples": 32})
    content = {"arrays": ArrayRecord([array + step for array in arrays]), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)
"""


class Processes:
    """Processes that end with the test, each with all that it has started."""

    def __init__(self, folder):
        self.folder, self.running = folder, {}
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name, *words):
        command = shutil.which(words[0], path=self.environment["PATH"])
        with (self.folder / f"{name}.log").open("a") as log:
            self.running[name] = subprocess.Popen(
                [command, *words[1:]],
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, name):
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def logs(self):
        return "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in self.folder.glob("*.log"))

    def wait_for(self, file, seconds):
        end = time.monotonic() + seconds
        while not (self.folder / file).exists():
            ended = self.running["run"].poll() is not None
            time.sleep(0.2)
            late = ended or time.monotonic() > end
            assert not late or (self.folder / file).exists(), f"no {file}\n{self.logs()}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def processes(tmp_path):
    made = Processes(tmp_path)
    yield made
    for name in list(made.running):
        made.kill(name)


def write_federation(folder, port):
    """The app, the keys of all, the session, and Flower's settings."""
    app = folder / "app" / "killed"
    app.mkdir(parents=True)
    (folder / "flwr").mkdir()
    (app.parent / "pyproject.toml").write_text(PROJECT)
    (app / "__init__.py").touch()
    (app / "server_app.py").write_text(SERVER)
    (app / "client_app.py").write_text(CLIENT)
    (folder / "steps.json").write_text(json.dumps(STEPS))
    (folder / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    keys = {name: Keys.generate(name) for name in ("s0", "s1", *STEPS)}
    for name, own in keys.items():
        own.save(folder / f"{name}.key.json")
    config = JanusConfig(length=4)
    SessionFile.of(config, [own.public for own in keys.values()]).save(folder / "session.json")


def test_a_deployment_outlives_kill_9_of_a_client_and_of_a_server(processes, tmp_path):
    port = free_port()
    write_federation(tmp_path, port)
    link = f"127.0.0.1:{port}"
    processes.start(
        *("superlink", "flower-superlink", "--insecure", "--disable-runtime-dependency-installation"),
        *("--port", str(port)),
    )

    def start_node(name):
        files = {"session": "session.json", "keys": f"{name}.key.json", "folder": f"state-{name}"}
        settings = [f"janus-{key}='{tmp_path / file}'" for key, file in files.items()]
        processes.start(
            *(name, "flower-supernode", "--insecure", "--superlink", link, "--port", str(free_port())),
            *("--node-config", " ".join([f"name='{name}'", *settings])),
        )

    for name in ("s1", *STEPS):
        start_node(name)
    time.sleep(10)
    processes.start("run", "flwr", "run", "app", "local", "-c", f"folder='{tmp_path}'", "--stream")

    processes.wait_for("model-d-2.npy", 150)
    processes.kill("d")  # in mid-round
    processes.wait_for("model-a-3.npy", 200)
    processes.kill("s1")  # before it has the sums of round 3
    start_node("s1")
    processes.wait_for("counts.json", 300)

    counts = json.loads((tmp_path / "counts.json").read_text())
    assert [counts[key]["participants"] for key in "124"] == [4, 3, 3]
    held = np.zeros(4)
    for number in (1, 2, 3):
        took_part = counts.get(str(number), {"participants": 0})["participants"]
        names = {4: "abcd", 3: "abc", 0: ""}[took_part]
        held = held + (np.mean([STEPS[name] for name in names]) if names else 0.0)
        for name in "abc":
            received = np.load(tmp_path / f"model-{name}-{number + 1}.npy")
            np.testing.assert_allclose(received, held, atol=1e-3)
