"""A graph of operators in the order in which a GPU's executor runs it, with the lives of storages.

Each node runs when its inputs are complete, in the order in which they became so. A storage is
freed after its last reader. An operator on elements writes its result over an input that no other
node reads; an update of a variable whose value is still to be read writes a copy. Pure: nodes are
rows of sizes and names.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, FrozenSet, Iterable, List, NamedTuple, Sequence, Set, Tuple

from .caching_allocator import StorageEvent

ALIASES = frozenset((
    "Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient",
    "Snapshot", "EnsureShape", "CheckNumerics", "Bitcast", "PlaceholderWithDefault", "Switch",
    "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "RefIdentity",
    "Assign", "AssignAdd", "AssignSub", "DestroyTemporaryVariable",
))  # fmt: skip
"""Operators whose result is their first input."""
IN_PLACE = frozenset((
    "Abs", "Add", "AddN", "AddV2", "BiasAdd", "Ceil", "Cos", "DivNoNan", "Elu", "EluGrad", "Erf",
    "Exp", "Expm1", "Floor", "FusedBatchNormV3", "FusedBatchNormGradV3", "Inv", "LeakyRelu",
    "LeakyReluGrad", "Log", "Log1p", "LogSoftmax", "Maximum", "Minimum", "Mul", "MulNoNan", "Neg",
    "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6", "Relu6Grad", "ReluGrad", "Rsqrt", "RsqrtGrad",
    "Selu", "SeluGrad", "Sigmoid", "SigmoidGrad", "Sign", "Sin", "Softmax", "Softplus",
    "SoftplusGrad", "Sqrt", "SqrtGrad", "Square", "SquaredDifference", "Sub", "Tanh", "TanhGrad",
    "Xdivy", "_FusedBatchNormEx", "_UnaryOpsComposition",
))  # fmt: skip
"""Operators that may write their result over an input of its size."""
READS = "ReadVariableOp"
"""The value of a variable is the variable's own storage."""
REPLACES = "AssignVariableOp"
"""The storage of the value becomes the variable's, unless another node reads the value."""
UPDATES = ("AssignAddVariableOp", "AssignSubVariableOp", "ResourceApply", "ResourceSparseApply",
           "ResourceScatter")  # fmt: skip
"""Operators (their names begin so) that write over the storage of variables."""


class FlowNode(NamedTuple):
    """One operator. Its tensors are numbered from 0 in all the graph."""

    kind: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    waits_for: Sequence[int] = ()
    """Nodes that come before it beside those that make its inputs."""
    scratch_bytes: int = 0
    """Bytes that its kernel takes beside tensors, and gives back."""


class Flow(NamedTuple):
    """The graph. The tensors that are no node's output are there from the start."""

    nodes: Sequence[FlowNode]
    sizes: Sequence[int]
    """The bytes of each tensor; 0: it takes none on a GPU."""
    lasting: Sequence[int] = ()
    """Tensors that live on after the step: variables, constants, the arguments."""
    variables: FrozenSet[int] = frozenset()
    """Tensors that stand for variables: of the nodes with such an input READS alone reads it."""


def order(nodes: Sequence[FlowNode]) -> List[int]:
    """Nodes as they become ready. A node on a circle waits for none of the circle's inputs."""
    maker = {tensor: at for at, node in enumerate(nodes) for tensor in node.outputs}
    before: List[Set[int]] = []
    for node in nodes:
        if node.kind == "Merge":  # of a loop: one of its inputs comes from behind it
            made = [maker[one] for one in node.inputs if one in maker]
            before.append({at for at in made if nodes[at].kind != "NextIteration"})
        else:
            before.append({maker[one] for one in node.inputs if one in maker})
        before[-1].update(node.waits_for)
    behind: List[List[int]] = [[] for _ in nodes]
    for at, earlier in enumerate(before):
        for one in earlier:
            behind[one].append(at)
    missing = [len(earlier) for earlier in before]
    ready: Deque[int] = deque(at for at, count in enumerate(missing) if not count)
    found = []
    while ready:
        at = ready.popleft()
        found.append(at)
        for one in behind[at]:
            missing[one] -= 1
            if not missing[one]:
                ready.append(one)
    return found


class _Lives:
    """The storages of a step, with the readers that each of them still has."""

    def __init__(self, flow: Flow, nodes: Iterable[int]) -> None:
        self.flow = flow
        self.events: List[StorageEvent] = []
        self.storage: Dict[int, int] = {}
        """Tensor -> its storage; several tensors may have one."""
        self.readers: Dict[int, int] = {}
        """Storage -> reads of it that are to come, and 1 where it outlives the step."""
        self.size: Dict[int, int] = {}
        self.reads: Dict[int, int] = {}
        for at in nodes:
            for tensor in flow.nodes[at].inputs:
                if tensor not in flow.variables:
                    self.reads[tensor] = self.reads.get(tensor, 0) + 1
        for tensor in flow.lasting:
            self.make(tensor)
            self.readers[self.storage[tensor]] += 1

    def make(self, tensor: int) -> None:
        """A storage of its own for the tensor."""
        self.share(tensor, self._storage_of(self.flow.sizes[tensor]))

    def _storage_of(self, size: int) -> int:
        number = len(self.size)
        self.size[number] = size
        self.events.append(StorageEvent(number, size))
        self.readers[number] = 0
        return number

    def share(self, tensor: int, storage: int) -> None:
        self.storage[tensor] = storage
        self.readers[storage] += self.reads.get(tensor, 0)

    def drop_read(self, storage: int) -> None:
        self.readers[storage] -= 1
        self.end_unread(storage)

    def end_unread(self, storage: int) -> None:
        if self.readers[storage] == 0:
            self.events.append(StorageEvent(storage, 0, is_freed=True))
            self.readers[storage] = -1

    def run(self, node: FlowNode) -> None:
        variables = [one for one in node.inputs if one in self.flow.variables]
        inputs = [
            self.storage[one]
            for one in node.inputs
            if one in self.storage and one not in self.flow.variables
        ]
        if node.kind == READS or node.kind in ALIASES:
            self._show(node, [self.storage[one] for one in variables] or inputs)
        elif node.kind == REPLACES and variables and inputs:
            self._replace(variables[0], inputs[0])
        else:
            if node.kind.startswith(UPDATES):
                for variable in variables:
                    self._update(variable)
            self._write(node, inputs)
        if node.scratch_bytes:
            self.end_unread(self._storage_of(node.scratch_bytes))
        for storage in inputs:
            self.drop_read(storage)
        for tensor in node.outputs:
            self.end_unread(self.storage[tensor])

    def _show(self, node: FlowNode, inputs: List[int]) -> None:
        for tensor in node.outputs:
            if inputs:
                self.share(tensor, inputs[0])
            else:
                self.make(tensor)

    def _replace(self, variable: int, value: int) -> None:
        if self.readers[value] == 1 and self.size[value] == self.flow.sizes[variable]:
            self._let_go(variable)
            self.readers[value] += 1
            self.storage[variable] = value
        else:
            self._update(variable)

    def _update(self, variable: int) -> None:
        """Readers of the earlier value keep its storage."""
        if self.readers[self.storage[variable]] == 1:
            return
        fresh = self._storage_of(self.flow.sizes[variable])
        self._let_go(variable)
        self.readers[fresh] = 1
        self.storage[variable] = fresh

    def _let_go(self, variable: int) -> None:
        self.drop_read(self.storage[variable])

    def _write(self, node: FlowNode, inputs: List[int]) -> None:
        taken = False
        for tensor in node.outputs:
            size = self.flow.sizes[tensor]
            over = None
            if node.kind in IN_PLACE and not taken:
                over = next((one for one in inputs if self._is_last(one, size)), None)
            if over is None:
                self.make(tensor)
            else:
                self.share(tensor, over)
                taken = True

    def _is_last(self, storage: int, size: int) -> bool:
        """Whether this is the last read of the storage, which has the size of the result."""
        return self.size[storage] == size and self.readers[storage] == 1


def lives(flow: Flow) -> Tuple[List[StorageEvent], List[int]]:
    """The storages' events, and the nodes in the order in which they ran."""
    ran = order(flow.nodes)
    found = _Lives(flow, ran)
    for at in ran:
        found.run(flow.nodes[at])
    return found.events, ran
