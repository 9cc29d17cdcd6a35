"""The knowledge of forecasts: the samples of the store, and the networks of the file of weights.

Knows: where both are, when to read the file again. Must not know: how a network was trained, how a
figure is predicted (core/forecast).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from nodemgr.core.forecast import network, samples
from nodemgr.core.forecast.network import NO_NETWORKS, NetworkError
from nodemgr.core.forecast.prediction import NOTHING_KNOWN, Known
from nodemgr.core.forecast.samples import Sample
from nodemgr.core.model.values import replace
from nodemgr.edge.forecast.trainer import Trainer
from nodemgr.edge.host import stderr_log
from nodemgr.edge.store import sample_rows
from nodemgr.edge.store.database import StoreFailed
from nodemgr.edge.store.journal import Journal
from nodemgr.edge.store.sample_rows import RETAINED_BYTES, RETAINED_ROWS, SampleRow, StoredSize

WEIGHTS_NAME = "forecast-weights.json"


class Knowledge:
    """The samples and networks of one manager."""

    def __init__(self, loop: asyncio.AbstractEventLoop, journal: Journal, weights: Path) -> None:
        """`weights`: the file that the training process writes."""
        self._journal, self._weights = journal, weights
        self._trainer = Trainer(loop, weights, journal.samples, self.read_weights)
        self._stamp: tuple[int, int] | None = None
        self.known: Known = NOTHING_KNOWN
        self._rows: list[StoredSize] = []
        """Of the store, in the order of the known samples."""
        found = []
        for text in self._stored():
            if (sample := samples.parse(text)) is not None:
                found.append(sample)
                self._rows.append(StoredSize(sample.env, len(text.encode())))
        self.known = Known(tuple(found), NO_NETWORKS)
        self.read_weights()

    def _stored(self) -> list[str]:
        """The texts of the store; none, and a line, if it cannot be read."""
        try:
            return self._journal.samples()
        except StoreFailed as error:
            stderr_log.say(
                f"forecasts begin without the samples of earlier tasks: {error}",
                "check the disk of the state directory; new samples are used as they come",
            )
            return []

    def add(self, sample: Sample) -> None:
        """Stores the sample, and uses it from now on."""
        text = samples.packed(sample)
        self._journal.save_sample(SampleRow(sample.env, text))
        self._rows.append(StoredSize(sample.env, len(text.encode())))
        dropped = sample_rows.surplus(self._rows, RETAINED_ROWS, RETAINED_BYTES)
        self._rows = [row for index, row in enumerate(self._rows) if index not in dropped]
        found = [*self.known.samples, sample]
        left = tuple(row for index, row in enumerate(found) if index not in dropped)
        self.known = replace(self.known, samples=left)
        self._trainer.added(len(left))

    def close(self) -> None:
        self._trainer.close()

    def read_weights(self) -> None:
        """Reads the file if it is new. A damaged one is reported in one line, and not used."""
        try:
            with self._weights.open("rb") as file:
                status = os.fstat(file.fileno())
                stamp = (status.st_mtime_ns, status.st_size)
                if stamp == self._stamp:
                    return
                self._stamp = stamp
                data = file.read(network.MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            self._use(network.NO_NETWORKS)
            return
        except OSError as error:
            self._refuse(str(error))
            return
        try:
            if len(data) > network.MAX_FILE_BYTES:
                self._refuse(f"it has more than {network.MAX_FILE_BYTES} bytes")
                return
            self._use(network.parse(data.decode()))
        except UnicodeDecodeError as error:
            self._refuse(str(error))
        except NetworkError as error:
            self._refuse(error.line)

    def _use(self, networks: network.Networks) -> None:
        self.known = replace(self.known, networks=networks)

    def _refuse(self, fault: str) -> None:
        stderr_log.say(
            f"{self._weights}, the learned weights of forecasts, is not used: {fault}",
            "delete it; the next training writes it anew, and estimates stand until then",
        )
        self._use(NO_NETWORKS)
