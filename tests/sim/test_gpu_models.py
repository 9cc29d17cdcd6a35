"""GPUs of different models on one node: their words, and the answers of the driver and of NVML."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from client_plugin.units import UnitError
from nodemgr import simulator
from nodemgr.simulator import CLIENT_LIBRARIES, SimulatedGpu, models, parse_gpus
from tests.sim.conftest import GIB, StartClient

ROOT = Path(__file__).resolve().parents[2]
MODELS = "csrc/sim/node/models.def"


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("2x80GiB", [SimulatedGpu(80 * GIB)] * 2),
        ("1xT4-16GiB", [SimulatedGpu(16 * GIB, "T4-16GiB")]),
        (
            "2xA100-80GiB,1xt4-16gib, 1x3GiB",
            [SimulatedGpu(80 * GIB, "A100-80GiB")] * 2
            + [SimulatedGpu(16 * GIB, "T4-16GiB"), SimulatedGpu(3 * GIB)],
        ),
        ("8xH100-80GiB,8xL4-24GiB", None),
    ],
)
def test_a_node_is_written_as_its_gpus(text: str, gpus: list[SimulatedGpu] | None) -> None:
    parsed = parse_gpus(text)
    assert list(parsed) == gpus if gpus else len(parsed) == 16


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2xA200-80GiB", "'2xA200-80GiB': unknown GPU model; the known ones: T4-16GiB, V100-16GiB"),
        ("0xT4-16GiB", "1 to 16 GPUs"),
        ("-1xT4-16GiB", "is no node"),
        ("xT4-16GiB", "is no node"),
        ("17x1GiB", "1 to 16 GPUs"),
        ("9xT4-16GiB,9xT4-16GiB", "1 to 16 GPUs"),
        ("1x1GiB," * 5000, "is no node|1 to 16 GPUs"),
        ("2xT4-16GiB,", "is no node"),
        ("any", "is no node"),
        ("1xany", "unknown GPU model"),
        ("1x80", "bare number"),
        ("1x" + "A" * 9000, "unknown GPU model"),
        ("", "is no node"),
    ],
)
def test_a_wrong_node_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UnitError, match=words) as caught:
        parse_gpus(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_driver_and_nvml_answer_by_the_model(tmp_path: Path, start: StartClient) -> None:
    gpus = parse_gpus("1xA100-80GiB,1xT4-16GiB,1x2GiB")
    with simulator.create_of(tmp_path / "n", gpus) as node:
        client = start(node)
        client.init()
        nvml = ctypes.CDLL(str(node.directory / CLIENT_LIBRARIES[1]))
        assert nvml.nvmlInit_v2() == 0
        for index, (gpu, capability, multiprocessors) in enumerate(
            zip(gpus, [(8, 0), (7, 5), (9, 0)], [108, 40, 132], strict=True)
        ):
            name = models()[gpu.model].name
            assert client.device_name(index) == name
            assert client.total(index) == gpu.memory_bytes
            asked = [client.attribute(number, index) for number in (75, 76, 16)]
            assert asked == [*capability, multiprocessors]
            handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
            assert nvml.nvmlDeviceGetName(handle, text, 96) == 0
            assert text.value.decode() == name
        assert nvml.nvmlShutdown() == 0
        assert node.gpus == gpus
        with simulator.open_or_create(node.directory, gpus) as same:
            assert same.gpus == gpus


def test_kernels_are_slower_on_fewer_multiprocessors(tmp_path: Path, start: StartClient) -> None:
    with simulator.create_of(tmp_path / "n", parse_gpus("1xH100-80GiB,1xT4-16GiB")) as node:
        client = start(node)
        client.init()
        for device in (0, 1):
            client.retain(device)
            client.launch_blocks(client.timed_kernel("step"), 132_000)
            client.synchronize()
        assert [node.times(device).busy_ns for device in (0, 1)] == [1_000_000, 3_300_000]


def test_every_model_has_its_figures() -> None:
    assert models()["any"].memory_bytes == 0
    for word, model in models().items():
        if word == "any":
            continue
        size = word.rpartition("-")[2]
        assert model.memory_bytes == int(size.removesuffix("GiB")) * GIB
        assert model.capability >= (7, 0)
        assert 10 < model.multiprocessors < 200
        assert model.flops < model.tensor_flops
        assert model.host_bytes_per_s < model.memory_bytes_per_s


ROW = re.compile(r'^X\("([^"]+)", "[^"]+",([^)]*)\)', re.MULTILINE)


@pytest.mark.parametrize("row", ROW.findall((ROOT / MODELS).read_text()), ids=lambda row: row[0])
def test_the_rates_of_a_model_follow_from_its_units_clocks_and_bus(row: tuple[str, str]) -> None:
    """TFLOPS are whole numbers in the table, and a data sheet's bandwidth is rounded, too."""
    figures = [int(text, 0) for text in row[1].split(",")]
    multiprocessors, cores, clock_mhz, memory_mhz, bus_bits = figures[3:8]
    tflops, gb_per_s = figures[11], figures[13]
    assert 2 * multiprocessors * cores * clock_mhz / 1e6 == pytest.approx(tflops, rel=0.05)
    assert 2 * memory_mhz * bus_bits / 8e3 == pytest.approx(gb_per_s, rel=0.03)


def test_the_table_is_read_whole() -> None:
    found = [word for word, _ in ROW.findall((ROOT / MODELS).read_text())]
    assert found == list(models())
