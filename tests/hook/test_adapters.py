"""Each framework's first use of CUDA holds a lease before it calls the driver.

Questions about CUDA request nothing.

The frameworks are stand-ins that have the originals' names where our adapters hold on to them, the
driver writes its calls down.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import HERE, STANDINS, World, interpreters

Make = Callable[..., Path]
RICH = ["torch", "tensorflow", "jax"]
GATED = [*RICH, "numba.cuda", "pycuda.driver"]
FRAMEWORKS = [*GATED, "mxnet", "caffe", "paddle", "cupy"]
GIB = 1 << 30
DENIED = [["DENIED", "over quota: alice may hold 2 GPUs"]]
WAIT_FOR_EVER = [["WAITING", "place 2: bob holds all GPUs"], ["hold", ""]]


@pytest.fixture(autouse=True)
def frameworks(world: World) -> None:
    world.path += [str(HERE / "fake_driver"), str(STANDINS)]
    world.script["grant"] = {"CUDA_VISIBLE_DEVICES": "1,3", "NODEMGR_VISIBLE": "1,3"}
    world.script["lease"] = {
        "gpus": "GPU-b,GPU-d",
        "visible": "1,3",
        "limits": f"{20 * GIB},{40 * GIB}",
    }


def events(log: list[str]) -> list[str]:
    """Requests and initialisations, each once where it repeats."""
    kept = [line for line in log if line.startswith(("begin", "cancel", "cuInit"))]
    return [line for index, line in enumerate(kept) if index == 0 or line != kept[index - 1]]


@pytest.mark.parametrize("python", interpreters())
@pytest.mark.parametrize("framework", RICH)
def test_the_first_use_holds_a_lease_before_the_driver_is_touched(
    world: World, framework: str, python: str
) -> None:
    child = world.run(f"import {framework}; print({framework}.first_use())", python=python)
    assert child.seen == 2, child.stderr
    assert events(child.log) == ["begin", "cuInit 1,3"]
    assert child.stderr == ""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_loading_alone_asks_for_nothing(world: World, framework: str) -> None:
    child = world.run(f"import {framework}")
    assert child.stderr == ""
    assert events(child.log) == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_without_the_shim_too_no_driver_is_touched_without_a_lease(
    world: World, framework: str
) -> None:
    world.script["preloaded"] = False
    child = world.run(f"import {framework}; print({framework}.first_use())")
    assert child.seen == 2
    assert events(child.log) == ["begin", "cuInit 1,3"]


@pytest.mark.parametrize("framework", GATED)
def test_a_refusal_is_raised_by_the_first_use_and_the_driver_stays_untouched(
    world: World, framework: str
) -> None:
    world.script["requests"] = [DENIED, [["HELD", ""]]]
    child = world.run(f"""
        import json, {framework}
        try:
            {framework}.first_use()
        except RuntimeError as error:
            print(json.dumps([type(error).__name__, str(error), {framework}.first_use()]))
        """)
    kind = "CudaSupportError" if framework == "numba.cuda" else "RuntimeError"
    assert child.seen == [kind, "nodemgr: over quota: alice may hold 2 GPUs", 2]
    assert events(child.log) == ["begin", "cuInit 1,3"]
    assert child.log.count("begin") == 2


@pytest.mark.parametrize("framework", GATED)
def test_ctrl_c_leaves_the_driver_untouched_and_a_later_use_succeeds(
    world: World, framework: str
) -> None:
    world.script["requests"] = [WAIT_FOR_EVER, [["HELD", ""]]]
    child = world.run_and_interrupt(
        f"""
        import {framework}
        try:
            {framework}.first_use()
        except KeyboardInterrupt:
            print({framework}.first_use())
        """,
        when="place 2",
    )
    assert child.seen == 2
    assert events(child.log) == ["begin", "cancel", "begin", "cuInit 1,3"]


def test_ctrl_c_in_cupy_too_leaves_the_driver_untouched(world: World) -> None:
    """Its runtime would remember the failed cuInit for ever."""
    world.script["preloaded"] = True
    world.script["requests"] = [WAIT_FOR_EVER, [["HELD", ""]]]
    child = world.run_and_interrupt(
        """
        import cupy
        try:
            cupy.first_use()
        except KeyboardInterrupt:
            print(cupy.first_use())
        """,
        when="place 2",
    )
    assert child.seen == 2
    assert events(child.log) == ["begin", "cancel", "begin", "cuInit 1,3"]


@pytest.mark.parametrize("framework", ["cupy.cuda", "numba.cuda"])
def test_is_available_asks_for_nothing(world: World, framework: str) -> None:
    world.script["preloaded"] = True
    child = world.run(f"import json, {framework}; print(json.dumps({framework}.is_available()))")
    assert child.seen is True
    assert events(child.log) == []


@pytest.mark.parametrize(
    ("runtime", "driver", "is_asked"),
    [(13050, 12080, True), (13050, 13000, False), (10020, 10010, True), (12090, 0, True)],
)
def test_cupy_asks_a_driver_that_is_too_old_for_its_runtime(
    world: World, runtime: int, driver: int, is_asked: bool
) -> None:
    """Its own answer is an error (35), and needs no lease."""
    child = world.run(f"""
        import cupy.cuda
        cupy.cuda.runtime.runtimeGetVersion = lambda: {runtime}
        cupy.cuda.runtime.driverGetVersion = lambda: {driver}
        cupy.cuda.is_available()
        cupy.cuda.runtime.getDeviceCount()
        """)
    assert events(child.log) == ["cuInit None"] * is_asked


def test_numba_that_is_refused_is_not_available_to_those_who_try(world: World) -> None:
    """Its own exception, which programs catch that go on without CUDA."""
    world.script["requests"] = [DENIED, [["HELD", ""]]]
    child = world.run("""
        import json, numba.cuda
        from numba.cuda.cudadrv.error import CudaSupportError
        try:
            numba.cuda.first_use()
        except CudaSupportError as error:
            print(json.dumps([str(error), numba.cuda.first_use()]))
        """)
    assert child.seen == ["nodemgr: over quota: alice may hold 2 GPUs", 2]


def test_pycudas_autoinit_acquires(world: World) -> None:
    child = world.run("import pycuda.autoinit, os; print(os.environ['CUDA_VISIBLE_DEVICES'][0])")
    assert child.seen == 1
    assert events(child.log) == ["begin", "cuInit 1,3"]


@pytest.mark.parametrize("nvml_based", ["1", "0"])
def test_torch_answers_questions_without_a_request(world: World, nvml_based: str) -> None:
    world.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = nvml_based
    child = world.run(
        "import torch, json; print(json.dumps([torch.cuda.is_available(),"
        " torch.cuda.device_count()]))"
    )
    assert child.seen == [True, 2]
    assert events(child.log) == []


@pytest.mark.parametrize(
    ("gpus", "environ"),
    [("0", {}), ("2", {"CUDA_VISIBLE_DEVICES": ""})],
    ids=["no quota", "hidden"],
)
def test_torch_without_gpus_says_so(world: World, gpus: str, environ: dict[str, str]) -> None:
    world.script["settings"]["gpus"] = gpus
    world.environ.update(environ)
    child = world.run(
        "import torch, json; print(json.dumps([torch.cuda.is_available(),"
        " torch.cuda.device_count()]))"
    )
    assert child.seen == [False, 0]
    assert events(child.log) == []


def test_torch_that_has_a_lease_answers_by_itself(world: World) -> None:
    child = world.run(
        "import torch, json; torch.cuda.init(); print(json.dumps([torch.cuda.is_available(),"
        " torch.cuda.device_count()]))"
    )
    assert child.seen == [True, 2]
    assert events(child.log) == ["begin", "cuInit 1,3"]


def test_rocm_is_none_of_our_business(world: World, package: Make) -> None:
    package(
        "torch",
        """
        from types import SimpleNamespace
        version = SimpleNamespace(hip="6.0")
        cuda = SimpleNamespace(_lazy_init=lambda: None)
        before = cuda._lazy_init
        """,
    )
    world.path.insert(0, world.path.pop())
    child = world.run(
        "import torch, json; print(json.dumps(torch.cuda._lazy_init is torch.before))"
    )
    assert child.seen is True


def test_without_the_shim_torch_keeps_to_its_share_of_each_gpu(world: World) -> None:
    world.script["preloaded"] = False
    child = world.run(
        "import torch, json; torch.cuda.init(); print(json.dumps(torch._C.fractions))"
    )
    assert child.seen == {"0": 0.25, "1": 0.5}


def test_with_the_shim_the_memory_is_the_shims_business(world: World) -> None:
    child = world.run(
        "import torch, json; torch.cuda.init(); print(json.dumps(torch._C.fractions))"
    )
    assert child.seen == {}


def test_a_user_who_sees_a_part_of_the_lease_gets_that_parts_limits(world: World) -> None:
    world.script["preloaded"] = False
    show = "import torch, json; torch.cuda.init(); print(json.dumps(torch._C.fractions))"
    world.script["grant"]["CUDA_VISIBLE_DEVICES"] = "GPU-d"
    assert world.run(show).seen == {"0": 0.5}
    world.script["grant"]["CUDA_VISIBLE_DEVICES"] = world.script["lease"]["visible"] = "3"
    assert world.run(show).seen == {"0": 0.25}  # which of the two is not known: the least of both


def test_without_the_shim_tensorflow_gets_logical_devices_of_the_grants_size(world: World) -> None:
    world.script["preloaded"] = False
    child = world.run("""
        import json, tensorflow
        context = tensorflow.context.context()
        mine = context.list_physical_devices("GPU")[1]
        context.set_logical_device_configuration(mine,
            [tensorflow.context.LogicalDeviceConfiguration(1024)])
        context.ensure_initialized()
        print(json.dumps({device.name: [part.memory_limit for part in parts] for device,
            parts in context._virtual_device_map.items()}))
        """)
    assert child.seen == {"GPU:0": [20 << 10], "GPU:1": [1024]}
    (half,) = child.stderr.splitlines()
    assert half.startswith("nodemgr: only the Python hook is active in this process")


@pytest.mark.parametrize(
    "call",
    [
        "session.BaseSession()",
        "device_lib.list_local_devices()",
        "context.context().ensure_initialized()",
    ],
)
def test_every_way_into_tensorflow_holds_a_lease_first(world: World, call: str) -> None:
    child = world.run(f"import tensorflow; tensorflow.{call}")
    assert child.stderr == ""
    assert events(child.log) == ["begin", "cuInit 1,3"]


def test_a_cpu_build_of_tensorflow_asks_for_nothing(world: World) -> None:
    child = world.run("""
        import sys, types
        build_info = types.SimpleNamespace(build_info={"is_cuda_build": False})
        sys.modules["tensorflow.python.platform.build_info"] = build_info
        import tensorflow.python.platform
        tensorflow.python.platform.build_info = sys.modules["tensorflow.python.platform.build_info"]
        import tensorflow
        tensorflow.first_use()
        """)
    assert events(child.log) == ["cuInit None"]


@pytest.mark.parametrize(
    ("platforms", "asks"),
    [("cpu", False), ("cuda", True), ("gpu", True), ("cpu,cuda", True), ("tpu", False)],
)
def test_jax_asks_where_the_user_wants_cuda(world: World, platforms: str, asks: bool) -> None:
    world.environ["JAX_PLATFORMS"] = platforms
    child = world.run("import jax\ntry: jax.devices()\nexcept KeyError: pass")
    assert ("begin" in child.log) is asks


def test_jax_without_a_cuda_plugin_asks_for_nothing(world: World, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "jax").symlink_to(STANDINS / "jax")
    (plain / "jax_plugins" / "xla_tpu").mkdir(parents=True)
    (plain / "jax_plugins" / "xla_tpu" / "__init__.py").write_text("def initialize(): pass\n")
    world.path[-1] = str(plain)
    child = world.run("import jax; print(jax.devices())")
    assert child.seen == 0
    assert child.log[1:] == ["publish XLA_PYTHON_CLIENT_PREALLOCATE=false"]


NVML = """
import ctypes
class Library:
    def __getattr__(self, name):
        def call(*arguments):
            if name == "nvmlDeviceGetMemoryInfo":
                arguments[1]._obj.total = 80 << 30
            return 0
        return call
real = ctypes.CDLL
ctypes.CDLL = lambda name, *rest, **options: (
    Library() if name == "libnvidia-ml.so.1" else real(name, *rest, **options))
"""


@pytest.mark.parametrize(
    ("users", "fraction"), [(None, "0.2500"), ("0.1", "0.1000"), ("0.9", "0.2500")]
)
def test_without_the_shim_jax_gets_its_smallest_share_as_its_fraction(
    world: World, users: str | None, fraction: str
) -> None:
    world.script["preloaded"] = False
    if users:
        world.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = users
    child = world.run(
        NVML + "import jax, json; jax.devices(); from jax_plugins import xla_cuda12;"
        " print(json.dumps(xla_cuda12.fraction))"
    )
    assert child.seen == fraction


def test_a_limit_that_cannot_be_set_is_one_line_and_the_program_goes_on(world: World) -> None:
    world.script["preloaded"] = False
    child = world.run("import jax; print(jax.devices())")
    assert child.seen == 2
    half, limit = child.stderr.splitlines()
    assert half.startswith("nodemgr: only the Python hook is active in this process")
    assert limit.startswith("nodemgr: JAX's memory limit failed (OSError: ")


def test_a_wrapped_call_still_looks_like_itself(world: World) -> None:
    child = world.run("""
        import json, pickle, torch, importlib
        once = torch.cuda.is_available
        importlib.reload(torch)
        back = pickle.loads(pickle.dumps(torch.cuda.is_available))
        same = back is torch.cuda.is_available is once
        print(json.dumps([torch.cuda.is_available.__name__, torch.cuda.is_available.__module__,
            same]))
        """)
    assert child.seen == ["is_available", "torch.cuda", True]
