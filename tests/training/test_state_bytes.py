"""The state that one worker hands to another: no pickle, checked before a tensor is made."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest

from tests.support.installed import later

pytestmark = pytest.mark.frameworks
torch: Any = later("torch")
state_bytes: Any = later("client_plugin.training.pytorch.state_bytes")


class Trap:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def bytes_of(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def with_head(text: bytes, tail: bytes = b"") -> torch.Tensor:
    return bytes_of(len(text).to_bytes(8, "big") + text + tail)


def test_states_of_optimizers_and_schedulers_come_back_as_they_were() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
    for _ in range(2):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        scheduler.step()
    told = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    back = state_bytes.unpacked(state_bytes.packed(told))
    again = torch.optim.AdamW(torch.nn.Linear(3, 2).parameters())
    again.load_state_dict(back["optimizer"])
    assert type(back["scheduler"]["milestones"]) is Counter
    assert back["scheduler"] == told["scheduler"]
    for key, row in told["optimizer"]["state"].items():
        assert all(torch.equal(row[name], back["optimizer"]["state"][key][name]) for name in row)


@pytest.mark.parametrize(
    "value",
    [None, True, -1, 0.1, "é\0", [], (), [1, (2, "x")], {"a": {1: None}}, OrderedDict(b=1), {3, 4}],
)
def test_plain_values_keep_their_type(value: Any) -> None:
    back = state_bytes.unpacked(state_bytes.packed(value))
    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize("name", ["float64", "bfloat16", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_keep_their_bits(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name)
    tensor = torch.ones(shape).to(dtype)
    back = state_bytes.unpacked(state_bytes.packed([tensor, 1]))[0]
    assert (back.dtype, back.shape) == (dtype, torch.Size(shape))
    assert torch.equal(back, tensor)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    trap = pickle.dumps(Trap(tmp_path / "ran"))
    for data in (bytes_of(trap), with_head(trap)):
        with pytest.raises(ValueError):  # noqa: PT011
            state_bytes.unpacked(data)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(TypeError, match="Trap"):
        state_bytes.packed({"state": Trap(tmp_path / "ran")})


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[", b'["tensor"]', b'["tensor","torch.float32",[-1]]',
        b'["tensor","torch.load",[1]]',
        b'["tensor","torch.float32",[1000000000000]]', b'["tensor","torch.float32",["1"]]',
        b'["dict",[[1]]]', b'["open","x"]', b'[{"a":1}]', b'["set",[["list",[]]]]', b'{"a":1}',
        b'["tensor","torch.float32",[true]]', b"[" * 100_000,
        b'["tensor",3,[1]]', b'["tensor","torch.float32",[0,9223372036854775807,4]]',
    ],
)  # fmt: skip
def test_what_is_no_state_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        state_bytes.unpacked(with_head(text))


@pytest.mark.parametrize("announced", [-1, 1 << 62])
def test_no_room_is_made_for_more_than_the_memory(announced: int) -> None:
    with pytest.raises(ValueError, match=f"a state of {announced} bytes"):
        state_bytes.checked_length(announced)
    assert state_bytes.checked_length(1 << 20) == 1 << 20


def test_a_header_longer_than_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="cut off"):
        state_bytes.unpacked(bytes_of((1 << 60).to_bytes(8, "big") + b"[]"))
