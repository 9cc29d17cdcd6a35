"""The names that the page answers to."""

from __future__ import annotations

import pytest

from nodemgr.edge.page.hosts import is_ours, is_same_origin, neighbours

NAMES = ("gpus.example.org", "fd00::1")


@pytest.mark.parametrize(
    "header",
    ["localhost", "localhost:1", "127.0.0.1:8088", "[::1]:8088", "GPUS.example.ORG:443",
     "gpus.example.org.", "10.0.0.5:8088", "[fd00:0:0::1]"],
)  # fmt: skip
def test_our_names(header: str) -> None:
    assert is_ours(header, NAMES, "::ffff:10.0.0.5")


@pytest.mark.parametrize(
    "header",
    ["", "evil.example", "gpus.example.org.evil.example", "x:y", "localhost:1:2", "10.0.0.6",
     "localhost/evil.example", "a b", "[::1", "[::2]", "127.1", "2130706433", "0x7f.1",
     "localhost\n", "\u212aocalhost", "user@localhost"],
)  # fmt: skip
def test_other_names(header: str) -> None:
    assert not is_ours(header, NAMES, "10.0.0.5")


def test_an_origin_is_ours_with_its_port() -> None:
    assert is_same_origin("http://localhost:9000", "localhost:9000")
    assert is_same_origin("https://gpus.example.org", "GPUS.example.org".lower())
    for origin in (
        "null",
        "",
        "http://localhost",
        "http://localhost:9001",
        "file://localhost:9000",
    ):
        assert not is_same_origin(origin, "localhost:9000")


def test_the_peers_that_count_as_one() -> None:
    assert neighbours("10.0.0.1") == neighbours("::ffff:10.0.0.1") == "10.0.0.1"
    assert neighbours("2001:db8::1") == neighbours("2001:db8::ffff:2")
    assert neighbours("127.0.0.1") is neighbours("::1") is neighbours("") is None
