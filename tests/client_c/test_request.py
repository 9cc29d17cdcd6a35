"""The request that CUDA_VISIBLE_DEVICES and its companions make, and a grant's value for it.

Both are tables (csrc/client/request.c).
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tests.client_c.compiled import CLIENT_SOURCES, compile_c

A, B, C, D = (f"GPU-{letter * 8}-1111-2222-3333-444444444444" for letter in "abcd")
NONE = object()


class Variables(ctypes.Structure):
    _fields_ = [
        ("cuda_visible", ctypes.c_char_p), ("nodemgr_visible", ctypes.c_char_p),
        ("nodemgr_gpus", ctypes.c_char_p), ("local_world_size", ctypes.c_char_p),
    ]  # fmt: skip


class Request(ctypes.Structure):
    _fields_ = [
        ("cpu", ctypes.c_bool), ("hidden", ctypes.c_bool), ("has_gpus", ctypes.c_bool),
        ("is_named", ctypes.c_bool),
        ("gpus", ctypes.c_uint64), ("gpus_max", ctypes.c_uint64),
        ("world", ctypes.c_uint64), ("rule", ctypes.c_int), ("list", ctypes.c_char * 1024),
        ("base", ctypes.c_char * 1024),
        ("has_memory", ctypes.c_bool), ("has_wait", ctypes.c_bool),
        ("has_compute", ctypes.c_bool), ("has_deadline", ctypes.c_bool),
        ("answered", ctypes.c_bool),
        ("memory_bytes", ctypes.c_uint64), ("wait_ms", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64), ("memory_max", ctypes.c_uint64),
        ("compute_percent", ctypes.c_uint64),
        ("task_deadline_ms", ctypes.c_uint64), ("task_class", ctypes.c_char * 65),
        ("worker_gpu", ctypes.c_char * 65), ("command", ctypes.c_char * 201),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp("request") / "client.so"
    library = ctypes.CDLL(str(compile_c(output, CLIENT_SOURCES, "-shared")))
    library.nm_request_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    return library


def read(
    library: ctypes.CDLL,
    visible: str | None,
    mark: str | None = None,
    gpus: str | None = None,
    world: str | None = None,
    said: int = -1,
) -> Request:
    texts = [text.encode() if text is not None else None for text in (visible, mark, gpus, world)]
    request = Request()
    library.nm_request_read(ctypes.byref(request), ctypes.byref(Variables(*texts)), said)
    return request


@pytest.mark.parametrize(
    ("text", "world", "gpus", "most"),
    [
        ("2", None, 2, 0),
        ("1-4", None, 1, 4),
        ("3-3", None, 3, 3),
        ("1-4", "2", 1, 4),
        *((text, None, None, 0) for text in ("4-1", "0-2", "2-", "-2", "1-4-5", "a-b", "1 -2")),
        ("1-99999999999", None, None, 0),
    ],
)
def test_a_range_of_gpus(
    library: ctypes.CDLL, text: str, world: str | None, gpus: int | None, most: int
) -> None:
    request = read(library, None, gpus=text, world=world)
    assert (request.gpus if request.has_gpus else None, request.gpus_max) == (gpus, most)


REQUESTS = [
    # CUDA_VISIBLE_DEVICES, mark, NODEMGR_GPUS, LOCAL_WORLD_SIZE, said -> asked for ("cpu": nothing;
    # None: the environment's default)
    (None, None, None, None, -1, None),
    ("", None, None, None, -1, "cpu"),
    ("-1", None, None, None, -1, "cpu"),
    ("-1,0", None, None, None, -1, "cpu"),
    ("none", None, None, None, -1, "cpu"),
    ("NoDevFiles", None, None, None, -1, "cpu"),
    ("0", None, None, None, -1, 1),
    ("0,1,2", None, None, None, -1, 3),
    (" 0 , 3 ", None, None, None, -1, 2),
    ("0,-1,2", None, None, None, -1, 1),
    ("0,,2", None, None, None, -1, 1),
    (f"{A},{B}", None, None, None, -1, 2),
    ("MIG-1234,GPU-5", None, None, None, -1, 2),
    ("GPU-", None, None, None, -1, "cpu"),
    ("0,1", None, "4", None, -1, 4),
    ("0,1", None, "4", None, 3, 3),
    (None, None, "0", None, -1, "cpu"),
    (None, None, None, None, 0, "cpu"),
    ("", None, "4", None, -1, "cpu"),
    ("", None, None, None, 2, "cpu"),
    (None, None, "two", None, -1, None),
    ("0", None, "two", None, -1, 1),
    (None, None, "-2", None, -1, None),
    (None, None, "99999999999999999999", None, -1, None),
    (None, None, None, "8", -1, None),
    ("3", None, None, "8", -1, 8),
    ("0,1,2", None, None, "2", -1, 3),
    (None, None, "1", "4", -1, 1),
    (None, None, None, "4", 1, 1),
    (None, None, None, "", -1, None),
    (f"{A},{B}", f"{A},{B}", None, None, -1, None),
    ("1", f"{A},{B}", None, None, -1, None),
    (B, f"{A},{B}", None, None, -1, None),
    ("", f"{A},{B}", None, None, -1, "cpu"),
    ("", "", None, None, -1, "cpu"),
    (None, f"{A},{B}", None, None, -1, None),
    ("0," * 600 + "0", None, None, None, -1, None),
]


@pytest.mark.parametrize(("visible", "mark", "gpus", "world", "said", "asked"), REQUESTS)
def test_the_gpus_that_are_asked_for(
    library: ctypes.CDLL,
    visible: str | None,
    mark: str | None,
    gpus: str | None,
    world: str | None,
    said: int,
    asked: object,
) -> None:
    request = read(library, visible, mark, gpus, world, said)
    assert ("cpu" if request.cpu else request.gpus if request.has_gpus else None) == asked


def test_the_world_is_read_even_if_no_number_is_asked_for(library: ctypes.CDLL) -> None:
    assert read(library, None, world="8").world == 8


VISIBLE = [
    # CUDA_VISIBLE_DEVICES, mark, granted -> what the process gets to see
    (None, None, f"{A},{B}", f"{A},{B}"),
    ("0,1", None, f"{C},{D}", f"{C},{D}"),
    ("5", None, C, C),
    # one rank's entry of a task's lease
    ("3", None, f"{A},{B},{C},{D}", D),
    ("5", None, f"{A},{B},{C},{D}", B),
    ("1,3", None, f"{A},{B},{C},{D}", f"{B},{D}"),
    (B, None, f"{A},{B},{C},{D}", B),
    ("GPU-bbbb", None, f"{A},{B},{C},{D}", B),
    ("GPU-elsewhere", None, f"{A},{B},{C},{D}", A),
    ("0,1,2,3", None, f"{A},{B}", f"{A},{B}"),
    ("2", None, "4,5,6", "6"),
    # our value, inherited
    (f"{A},{B}", f"{A},{B}", f"{A},{B}", f"{A},{B}"),
    (B, B, f"{A},{B}", B),
    ("3", "3", "1,3", "3"),
    (A, A, f"{C},{D}", f"{C},{D}"),
    # a child's choice out of it
    ("1", f"{A},{B}", f"{A},{B}", B),
    ("0", f"{B},{C}", f"{A},{B},{C}", B),
    (B, f"{A},{B}", f"{A},{B}", B),
    ("GPU-bbbb", f"{A},{B}", f"{A},{B}", B),
    ("3", "2,3", "2,3", "3"),
    ("1", "2,3", "2,3", "3"),
    ("7", "2,3", "2,3", ""),
    ("1,7,0", f"{A},{B}", f"{A},{B}", B),
    ("1", f"{A},{B}", f"{C},{D}", D),
    ("GPU-elsewhere", f"{A},{B}", f"{A},{B}", ""),
    ("1,0", f"{A},{B}", f"{A},{B}", f"{B},{A}"),
    ("1,1", f"{A},{B}", f"{A},{B}", B),
]


@pytest.mark.parametrize(("visible", "mark", "granted", "shown"), VISIBLE)
def test_what_the_process_sees(
    library: ctypes.CDLL, visible: str | None, mark: str | None, granted: str, shown: str
) -> None:
    request = read(library, visible, mark)
    out = ctypes.create_string_buffer(1024)
    library.nm_request_visible(ctypes.byref(request), granted.encode(), out)
    assert out.value.decode() == shown


def test_beyond_a_named_number_an_index_shows_no_gpu(library: ctypes.CDLL) -> None:
    """A worker with the mask 2 in a task of two GPUs."""
    out = ctypes.create_string_buffer(1024)
    request = read(library, "2", gpus="2")
    library.nm_request_visible(ctypes.byref(request), f"{A},{B}".encode(), out)
    assert out.value == b""


def test_no_value_of_the_variables_makes_the_rules_fall(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    """Odd lists: any result is a part of the grant, each device once."""
    granted = f"{A},{B},{C}"
    out = ctypes.create_string_buffer(1024)
    for visible in (
        "0" * 1023,
        ",".join("0123456789" * 20),
        ",".join([A] * 24),
        "18446744073709551615",
        "0x1",
        "GPU-a,GPU-b,GPU-c,GPU-d",
    ):
        for mark in (None, visible, "0", f"{C},{A}", ",", "GPU-"):
            library.nm_request_visible(
                ctypes.byref(read(library, visible, mark)), granted.encode(), out
            )
            shown = out.value.decode().split(",") if out.value else []
            assert set(shown) <= {A, B, C}
            assert len(set(shown)) == len(shown)
