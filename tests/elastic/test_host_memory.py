"""The memory that is left for a spare."""

from __future__ import annotations

import os
import subprocess

import psutil

from client_plugin.elastic import host_memory


def test_no_more_is_free_than_the_host_has() -> None:
    assert 0 < host_memory.free_bytes() <= psutil.virtual_memory().total


def test_the_memory_of_a_process_is_that_of_the_kernel_and_0_after_its_end() -> None:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    known_bytes = psutil.Process().memory_info().rss
    assert abs(host_memory.resident_bytes(os.getpid()) - known_bytes) < 10_000 * page_bytes
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert host_memory.resident_bytes(ended.pid) == 0
