"""The grid within one process behaves as Flower's own: copies, lasting state, errors as replies."""

import subprocess
import sys

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from hexad.core.errors import InputError
from hexad.federated.flower import SERVER_ID, InProcessGrid, check_enough_nodes


def counting_app():
    """Adds the node's partition to the arrays; remembers how often it was called."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        calls = context.state.setdefault("calls", MetricRecord({"n": 0}))
        calls["n"] += 1
        message.content["config"]["spoiled"] = True
        part = context.node_config["partition-id"]
        if context.run_config.get("fails-at") == part:
            raise ValueError("no data here")
        arrays = [array + part for array in message.content["arrays"].to_numpy_ndarrays()]
        metrics = MetricRecord({"num-examples": 1, "calls": calls["n"]})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return app


def test_flower_s_own_strategy_runs_on_it():
    grid = InProcessGrid(counting_app(), 4)
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=3)
    # Each round adds the mean of 0, 1, 2, 3.
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], 4.5)
    assert result.train_metrics_clientapp[3]["calls"] == 3
    assert [context.state["calls"]["n"] for context in grid.contexts.values()] == [3] * 4


def test_nobody_sees_another_s_objects():
    grid = InProcessGrid(counting_app(), 2)
    record = RecordDict({"arrays": ArrayRecord([np.zeros(1)]), "config": ConfigRecord({"a": 1})})
    messages = [Message(record, node, MessageType.TRAIN) for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(messages))
    assert "spoiled" not in record["config"]
    assert [reply.metadata.src_node_id for reply in replies] == list(grid.get_node_ids())
    assert {reply.metadata.dst_node_id for reply in replies} == {SERVER_ID}
    assert [r.metadata.reply_to_message_id for r in replies] == [m.metadata.message_id for m in messages]


def test_a_client_that_raises_answers_with_an_error():
    grid = InProcessGrid(counting_app(), 3, run_config={"fails-at": 1})
    content = RecordDict({"arrays": ArrayRecord([np.zeros(1)]), "config": ConfigRecord()})
    replies = grid.send_and_receive([Message(content, n, MessageType.TRAIN) for n in grid.get_node_ids()])
    assert [reply.has_error() for reply in replies] == [False, True, False]
    (node, error), *others = grid.failures
    assert node == list(grid.get_node_ids())[1]
    assert str(error) == "no data here"
    assert not others


def test_a_lost_reply_leaves_the_node_changed():
    grid = InProcessGrid(counting_app(), 3, loses_reply=lambda reply: reply.metadata.src_node_id == 3)
    content = RecordDict({"arrays": ArrayRecord([np.zeros(1)]), "config": ConfigRecord()})
    replies = grid.send_and_receive([Message(content, n, MessageType.TRAIN) for n in grid.get_node_ids()])
    assert [reply.metadata.src_node_id for reply in replies] == [2, 4]
    assert grid.contexts[3].state["calls"]["n"] == 1


def test_each_node_may_have_its_own_app_and_config():
    apps = {7: counting_app(), 9: ClientApp()}
    grid = InProcessGrid(apps, [{"partition-id": 5}, {}])
    content = RecordDict({"arrays": ArrayRecord([np.zeros(1)]), "config": ConfigRecord()})
    first, second = grid.send_and_receive([Message(content, n, MessageType.TRAIN) for n in (7, 9)])
    assert first.content["arrays"].to_numpy_ndarrays()[0] == 5
    assert second.has_error()  # it knows no train function


def test_bad_grids_and_messages_are_refused():
    with pytest.raises(InputError, match="nodes is 0"):
        InProcessGrid(ClientApp(), 0)
    with pytest.raises(InputError, match="apps for 1 nodes and nodes says 2"):
        InProcessGrid({2: ClientApp()}, 2)
    grid = InProcessGrid(ClientApp(), 1)
    with pytest.raises(InputError, match="node 99, which is not there"):
        grid.send_and_receive([Message(RecordDict(), 99, MessageType.TRAIN)])


def test_a_strategy_that_would_wait_for_ever_is_refused():
    grid = InProcessGrid(counting_app(), 1)
    with pytest.raises(InputError, match="min_available_nodes is 2 and the grid has 1 node, to which none"):
        check_enough_nodes(grid, FedAvg(fraction_evaluate=0.0))
    with pytest.raises(InputError, match="min_train_nodes is 3 and the grid has 1 node"):
        check_enough_nodes(grid, FedAvg(min_train_nodes=3, min_available_nodes=1, fraction_evaluate=0.0))
    few = FedAvg(min_train_nodes=1, min_available_nodes=1, min_evaluate_nodes=5, fraction_evaluate=0.0)
    check_enough_nodes(grid, few)  # nobody is asked to evaluate
    few.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=1)
    check_enough_nodes(object(), FedAvg())  # nodes may yet come to other grids


def test_without_flower_one_line_says_what_to_install():
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "from hexad.core.errors import MissingExtraError\n"
        "try:\n    import hexad.federated.flower\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert 'pip install "hexad-federated[flower]"' in done.stdout
