"""A training process that only a kill ends, however late that comes."""

import signal

ENDLESS = __name__


def main(_path: str) -> int:
    while True:
        signal.pause()
