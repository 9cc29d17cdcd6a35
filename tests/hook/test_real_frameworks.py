"""The installed PyTorch through the hook: its CPU build with the CUDA build's functions.

test_end_to_end.py has the real client, and TensorFlow.
"""

from __future__ import annotations

from importlib import metadata

import pytest

from .conftest import HERE, STANDINS, World

pytestmark = pytest.mark.frameworks
WAIT_FOR_EVER = [["WAITING", "place 2: bob holds all GPUs"], ["hold", ""]]
DENIED = [["DENIED", "over quota: alice may hold 2 GPUs"]]
HELD = [["HELD", ""]]
CPU_BUILD = pytest.mark.skipif(
    any("nvidia" in requirement for requirement in metadata.requires("torch") or ()),
    reason="needs PyTorch's CPU build: pip install torch==2.13.0+cpu (PyTorch's index `cpu`)",
)


@pytest.fixture(autouse=True)
def real(world: World) -> None:
    tools = world.directory / "tools"
    tools.mkdir()
    (tools / "torch_cuda_build.py").symlink_to(STANDINS / "torch_cuda_build.py")
    world.path += [str(HERE / "fake_driver"), str(tools)]
    world.script["grant"] = {"CUDA_VISIBLE_DEVICES": "1,3", "NODEMGR_VISIBLE": "1,3"}
    world.script["lease"] = {
        "gpus": "GPU-b,GPU-d",
        "visible": "1,3",
        "limits": f"{20 << 30},{40 << 30}",
    }


def asked(log: list[str]) -> list[str]:
    return [line for line in log if line.startswith(("begin", "cancel", "cuInit"))]


@CPU_BUILD
def test_pytorchs_cpu_build_behaves_as_ever(world: World) -> None:
    child = world.run("""
        import importlib.util, json, torch, torch.version, torchgen
        said = []
        for use in (torch.cuda.init, lambda: torch.zeros(1, device="cuda")):
            try:
                use()
            except AssertionError as error:
                said.append(str(error))
        loader = type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__
        model = torch.nn.Linear(3, 2)
        model(torch.ones(4, 3)).sum().backward()
        print(json.dumps([said, loader, torch.cuda.is_available(), torch.cuda.device_count(),
            model.weight.grad.sum().item()]))
        """)
    assert child.seen == [
        ["Torch not compiled with CUDA enabled"] * 2,
        ["SourceFileLoader"] * 2,
        False,
        0,
        24.0,
    ]
    assert asked(child.log) == []
    assert child.stderr == ""


@pytest.mark.parametrize("preloaded", [True, False], ids=["shim", "no shim"])
def test_pytorchs_first_use_wherever_it_comes_from(world: World, preloaded: bool) -> None:
    """Questions first; then a refusal; then a use from C++ code.

    That code looks up torch.cuda._lazy_init by itself.
    """
    world.script["preloaded"] = preloaded
    world.script["requests"] = [DENIED, HELD]
    child = world.run("""
        import json, os, torch, torch_cuda_build
        torch_cuda_build.install(torch)
        sys_adapter = __import__("sys").modules["_nodemgr_client_plugin.adapters.torch"]
        sys_adapter.adapt(torch)
        before = [torch.cuda.is_available(), torch.cuda.device_count(),
            torch._C._cuda_getDeviceCount()]
        try:
            torch.cuda.init()
        except RuntimeError as error:
            refused = str(error)
        try:
            torch.zeros(1, device="cuda")
        except RuntimeError:  # behind the initialisation: no such kernel, or no driver
            pass
        after = [torch.cuda.is_initialized(), torch.cuda.device_count(), torch.cuda.is_available()]
        print(json.dumps([before, refused, after, torch.standin_fractions,
            os.environ["CUDA_VISIBLE_DEVICES"]]))
        """)
    fractions = {} if preloaded else {"0": 0.25, "1": 0.5}
    assert child.seen == [
        [True, 2, 2],
        "nodemgr: over quota: alice may hold 2 GPUs",
        [True, 2, True],
        fractions,
        "1,3",
    ]
    assert asked(child.log)[:3] == ["begin", "begin", "cuInit 1,3"]
    assert set(asked(child.log)[3:]) <= {"cuInit 1,3"}


def test_a_module_that_took_lazy_init_by_name_is_caught_as_well(world: World) -> None:
    """torch.cuda.random has its own reference to the original, so torch._C._cuda_init is gated."""
    child = world.run("""
        import sys, torch, torch_cuda_build
        torch_cuda_build.install(torch)
        sys.modules["_nodemgr_client_plugin.adapters.torch"].adapt(torch)
        assert torch.cuda.random._lazy_init is not torch.cuda._lazy_init
        torch.cuda.random._lazy_init()
        """)
    assert child.returncode == 0, child.stderr
    assert asked(child.log)[:2] == ["begin", "cuInit 1,3"]


def test_ctrl_c_in_pytorch(world: World) -> None:
    world.script["requests"] = [WAIT_FOR_EVER, HELD]
    child = world.run_and_interrupt(
        """
        import json, sys, torch, torch_cuda_build
        torch_cuda_build.install(torch)
        sys.modules["_nodemgr_client_plugin.adapters.torch"].adapt(torch)
        try:
            torch.cuda.init()
        except KeyboardInterrupt:
            initialised = torch.cuda.is_initialized()
        torch.cuda.init()
        print(json.dumps([initialised, torch.cuda.is_initialized()]))
        """,
        when="place 2",
    )
    assert child.seen == [False, True]
    assert asked(child.log)[:4] == ["begin", "cancel", "begin", "cuInit 1,3"]


def test_workers_of_a_data_loader_ask_for_nothing_and_belong_to_the_task(world: World) -> None:
    child = world.run("""
        import json, os, torch
        class Tokens(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, index):
                return os.environ["NODEMGR_TASK"], torch.cuda.is_available()
        loader = torch.utils.data.DataLoader(Tokens(), num_workers=2, batch_size=None)
        print(json.dumps([token == os.environ["NODEMGR_TASK"] for token, _ in loader]))
        """)
    assert child.seen == [True] * 4
    assert asked(child.log) == []


def test_the_stand_in_has_the_originals_names(world: World) -> None:
    child = world.run("import json, torch; print(json.dumps(dir(torch.cuda)))")
    assert {
        "_lazy_init",
        "_lazy_call",
        "is_available",
        "device_count",
        "_is_compiled",
        "get_device_properties",
        "_initialized",
    } <= set(child.seen)
    standin = (STANDINS / "torch" / "cuda" / "__init__.py").read_text()
    assert "def _lazy_init(" in standin
