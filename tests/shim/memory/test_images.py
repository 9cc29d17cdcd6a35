"""The memory of a module, by its image: cubins, PTX, and any other bytes in their place."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests.shim.hooks.test_every_hook import CUBIN, CUBIN_BYTES, PTX, PTX_BYTES, elf
from tests.shim.world import MIB, compiled

MOST = 2**64 - 1


def told(directory: Path, images: list[bytes]) -> list[int]:
    """Of each image; from a file and from memory the same is told."""
    paths = [directory / str(number) for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        path.write_bytes(image)
    program = compiled("images.c", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    ran = subprocess.run([program, *paths], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    *pairs, nothing = [tuple(map(int, line.split())) for line in ran.stdout.splitlines()]
    assert nothing == (0, 0)
    assert all(in_file == in_memory for in_file, in_memory in pairs)
    return [in_file for in_file, _ in pairs]


def ptx(*lines: str) -> bytes:
    return "\n".join((".version 8.0", *lines)).encode()


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (CUBIN, CUBIN_BYTES),
        (PTX, PTX_BYTES),
        (PTX.replace(b"\n", b"\r\n"), PTX_BYTES),
        (ptx(".global .u64 a, b[2], c = 5;"), 32),
        (ptx(".global .align 16 .v4 .f32 a[10];"), 160),
        (ptx(".global .attribute(.managed) .b8 a[3 ];"), 3),
        (ptx(".global .b8 a[2][3]={{1,2,3},{4,5,6}} ; .weak .global .f16 b;"), 8),
        (ptx("/* .global .b8 a[9]; */ .extern .global .b8 b[]; .global .b8 c;"), 1),
        (ptx("ld.global.f32 %f1, [a]; .const .b8 d[64]; .shared .b8 e[64];"), 0),
        (b"\n\n// by hand\n.global .b8 a[7];", 7),
    ],
)
def test_it_is_read(image: bytes, expected: int, tmp_path: Path) -> None:
    assert told(tmp_path, [image]) == [expected]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (b"", 0),
        (b"\0", 0),
        (b"\x7fELF", 0),
        (CUBIN[:64], 0),
        (CUBIN[:-1], 0),
        (CUBIN[:40] + b"\xff" * 8 + CUBIN[48:], 0),  # a table of sections that is nowhere
        (CUBIN[:62] + b"\xff\xff", 0),  # names that are in no section
        (CUBIN[:4] + b"\1" + CUBIN[5:], 0),  # of 32 bits
        (elf((".nv.global", 8, 3, MOST), (".nv.more", 8, 3, MOST)), MOST),
        (b"\x50\xed\x55\xba" + bytes(60), 0),  # a fat binary
        (b"simulated image", 0),
        (ptx(".global .b8 a[99999999999999999999999999];"), MOST),
        (ptx(".global .b64 a[4294967296][4294967296];"), MOST),
        (ptx(".global .b8 a[100]"), 0),
        (ptx(".global .b8 a[100] = {1, 2"), 0),
        (ptx(".global"), 0),
        (ptx("/* .global .b8 a[100];"), 0),
        (ptx(".global .b8 " + "a" * 10_000 + "[5];"), 5),
        (ptx("]]}}))" * 1000, ".global .b8 a;"), 1),
    ],
)
def test_what_is_no_image_is_survived(image: bytes, expected: int, tmp_path: Path) -> None:
    assert told(tmp_path, [image]) == [expected]


def test_broken_images(tmp_path: Path) -> None:
    chance = random.Random(3)
    images = []
    for _ in range(300):
        image = bytearray(chance.choice((CUBIN, PTX)))
        for _ in range(chance.randint(1, 8)):
            image[chance.randrange(len(image))] = chance.choice(
                (0, 0x7F, 0xFF, ord("["), ord("{"), chance.randrange(256))
            )
        images.append(bytes(image[: chance.randint(1, len(image))]))
    assert any(size > MIB for size in told(tmp_path, images))
