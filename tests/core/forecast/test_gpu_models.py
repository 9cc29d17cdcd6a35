"""The table of GPU models, and the names that find a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nodemgr.core.forecast.gpu_models import GPU_MODELS, SIMULATED, find, like

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "csrc" / "sim" / "node" / "models.def"
FORECAST_PAGE = ROOT / "docs" / "forecast.md"


def test_the_table_agrees_with_the_simulator_s() -> None:
    rows = re.findall(r"^X\((.+?)\)$", MODELS.read_text(), re.MULTILINE | re.DOTALL)
    assert len(rows) > 5
    for row in rows:
        cells = [cell.strip().strip('"') for cell in row.replace("\n", " ").split(",")]
        model = find(cells[1])
        assert model is not None, cells[1]
        if cells[1] == SIMULATED:
            continue
        assert model.word == cells[0]
        assert model.memory_bytes == int(cells[2]) << 20
        assert [model.major, model.minor] == [int(cell) for cell in cells[3:5]]
        assert model.cores == int(cells[5]) * int(cells[6])
        assert abs(model.float32_gflops - 1000 * int(cells[13])) < 1000, model.name
        assert abs(model.tensor_gflops - 1000 * int(cells[14])) < 1000, model.name
        assert model.bandwidth_gb_per_s == int(cells[15])


def test_each_row_names_its_page_and_its_peak_is_that_of_its_units_at_a_likely_clock() -> None:
    for model in GPU_MODELS:
        assert "NVIDIA" in model.source, model.name
        clock_mhz = model.float32_gflops * 1000 / (2 * model.cores)
        assert 1_300 < clock_mhz < 2_600, (model.name, clock_mhz)
        named_gb = re.search(r"-(\d+)GiB$", model.word)
        assert named_gb is not None
        assert int(named_gb[1]) << 30 == model.memory_bytes


def test_names_and_words_are_unique_and_find_their_row() -> None:
    names = [name.casefold() for model in GPU_MODELS for name in (model.name, model.word)]
    assert len(set(names)) == len(names)
    for model in GPU_MODELS:
        assert find(model.name) is find(model.word.lower()) is model


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("A100-80GB", ["A100-80GiB"]),
        ("NVIDIA H100", ["H100-80GiB", "H100-PCIE-80GiB"]),
        ("v100-pcie", ["V100-PCIE-16GiB", "V100-PCIE-32GiB"]),
        ("RTX 9090", []),
        ("a", []),
        ("", []),
    ],
)
def test_a_name_without_a_row_may_mean_those_that_begin_with_it(
    name: str, words: list[str]
) -> None:
    assert find(name) is None
    assert like(name) == words


def test_the_documentation_lists_all_short_names() -> None:
    listed = re.findall(r"`([A-Z0-9-]+GiB)`", FORECAST_PAGE.read_text())
    assert listed == [model.word for model in GPU_MODELS]


def test_precisions_have_the_rates_of_their_generation() -> None:
    volta, ampere = find("V100-32GiB"), find("A100-80GiB")
    assert volta is not None
    assert ampere is not None
    assert volta.gflops("float16") == 125_000
    assert volta.gflops("bfloat16") == volta.gflops("tf32") == volta.gflops("float32") == 15_700
    assert ampere.gflops("bfloat16") == 312_000
    assert ampere.gflops("tf32") == 156_000
    assert ampere.gflops("float64") == 9_750


def test_a_model_of_the_user_s_own() -> None:
    model = find("mine:12.5:400:24")
    assert model is not None
    assert (model.name, model.memory_bytes >> 30) == ("mine", 24)
    assert model.gflops("float16") == model.gflops("float32") == 12_500
    assert model.bandwidth_gb_per_s == 400


@pytest.mark.parametrize(
    "text",
    ["", "RTX 9090", "mine:0:1:1", "mine:1:0:1", "mine:1:1", "m:1e9:1:1", "a\n:1:1:1", ":1:1:1"],
)
def test_an_unknown_model_is_none(text: str) -> None:
    assert find(text) is None
