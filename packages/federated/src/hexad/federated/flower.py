"""Flower within one process: a grid that hands messages to client apps by plain calls, without Ray.

    grid = InProcessGrid(client_app, nodes=10)
    result = strategy.start(grid, initial_arrays, num_rounds=3)

It keeps what Flower keeps between a server and its nodes: nobody sees another's objects (messages are
copied), each node has a context whose state lasts, and a client that raises answers with an error. So a run
is fast, deterministic and easy to debug. Nodes neither come nor go, so a strategy that waits for more of
them waits for ever; `check_enough_nodes` refuses that at the start. It needs the extra `flower`; importing
this without it says so.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_count

try:
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.supercore.run import Run

    # Private, hence the pin below 1.43: messages can be made only in a process that has an identity.
    from flwr.supercore.task_identity import TaskIdentity
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f'Flower is needed ({error.name!r} is not installed); run: pip install "hexad-federated[flower]"'
    ) from error

RUN_ID = 1
SERVER_ID = 1
"""Node id of the server, as in Flower."""

CLIENT_APP_RAISED = 2
"""Flower's error code of a client that raised."""

Apps = ClientApp | Mapping[int, ClientApp]


def take_identity() -> None:
    """Let this process make messages where Flower has given it no identity of its own."""
    for name, value in (("run_id", RUN_ID), ("task_id", 1), ("node_id", SERVER_ID)):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, value)


class NodeCounts(Protocol):
    """A strategy that waits for nodes, such as Flower's FedAvg."""

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int


def check_enough_nodes(grid: Grid, strategy: NodeCounts) -> None:
    """Refuse (`InputError`) an `InProcessGrid` with fewer nodes than a strategy waits for: none will come."""
    if not isinstance(grid, InProcessGrid):
        return
    there = len(grid.contexts)
    wanted = {"min_available_nodes": strategy.min_available_nodes}
    if strategy.fraction_train:
        wanted["min_train_nodes"] = strategy.min_train_nodes
    if strategy.fraction_evaluate:
        wanted["min_evaluate_nodes"] = strategy.min_evaluate_nodes
    for name, count in wanted.items():
        if count > there:
            raise InputError(
                f"{name} is {count} and the grid has {there} node{'s' * (there != 1)}, to which none will "
                f"come; pass {name}={there} or more nodes"
            )


class InProcessGrid(Grid):
    """A grid whose nodes live in this process and answer at once, one after the other.

    Args:
        client_app: the app of all nodes, or an app for each node id.
        nodes: how many nodes, or the `node_config` of each. Of n nodes the configs are
            `{"partition-id": i, "num-partitions": n}`, as in Flower's simulation. Node ids are 2, 3, ...
            in the same order (1 is the server), or the keys of `client_app` where it is a mapping.
        run_config: of every node's context.
        loses_reply: told each reply; where it says True, the node has worked and its reply never arrives.

    Attributes:
        contexts: the context of each node by its id; `contexts[id].state` is what the node remembers.
        failures: (node id, exception) of every client that raised.
        sent: bytes of all arrays that went to nodes.
        received: bytes of all arrays that nodes sent, whether or not they arrived.

    Raises:
        InputError: no nodes, or not as many apps as nodes.
    """

    def __init__(
        self,
        client_app: Apps,
        nodes: int | Sequence[Mapping[str, Any]],
        *,
        run_config: Mapping[str, Any] | None = None,
        loses_reply: Callable[[Message], bool] | None = None,
    ) -> None:
        count = nodes if isinstance(nodes, int) else len(nodes)
        check_count("nodes", count)
        configs: list[dict[str, Any]] = (
            [{"partition-id": index, "num-partitions": count} for index in range(count)]
            if isinstance(nodes, int)
            else [dict(config) for config in nodes]
        )
        ids = range(SERVER_ID + 1, SERVER_ID + 1 + count)
        self._apps = dict(client_app) if isinstance(client_app, Mapping) else dict.fromkeys(ids, client_app)
        if len(self._apps) != count:
            raise InputError(f"client_app has apps for {len(self._apps)} nodes and nodes says {count}")
        self.contexts = {
            node: Context(RUN_ID, node, config, RecordDict(), dict(run_config or {}))
            for node, config in zip(self._apps, configs, strict=True)
        }
        self.failures: list[tuple[int, Exception]] = []
        self.sent = self.received = 0
        self._loses_reply = loses_reply
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count(1)
        self._run = Run.create_empty(RUN_ID)
        take_identity()

    def set_run(self, run: Run) -> None:
        """Take what is known of the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """What is known of the run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the nodes, all of which are connected."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes answer the messages; return the messages' ids.

        Raises:
            InputError: a message to a node that is not there.
        """
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.contexts:
                raise InputError(f"message to node {node}, which is not there; nodes: {list(self.contexts)}")
            ids.append(str(next(self._numbers)))
            # As Flower's own grid in memory does: metadata has no public way to set an id.
            message.metadata.__dict__["_message_id"] = ids[-1]
            reply = self._answer(node, message)
            if self._loses_reply is None or not self._loses_reply(reply):
                self._replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to those messages, each once."""
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send the messages and return the replies that arrive; nobody is waited for."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, node: int, message: Message) -> Message:
        received = copy.copy(message)
        received.__dict__["_content"] = copy.deepcopy(message.content)
        self.sent += _size(message.content)
        try:
            reply = self._apps[node](received, self.contexts[node])
        except Exception as error:
            self.failures.append((node, error))
            return Message(Error(CLIENT_APP_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)
        if reply.has_content():
            reply.content = copy.deepcopy(reply.content)
            self.received += _size(reply.content)
        return reply


def _size(content: RecordDict) -> int:
    """Bytes of the arrays in a message, serialised as Flower sends them."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())
