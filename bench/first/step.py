"""The process of one step: answers its question with one line, whatever the machine lacks.

    python bench/first/step.py JSON DESCRIPTOR

Prints go to the log. The answer goes to the descriptor: a state and a line. A traceback goes to the
log alone.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from lacking import Lacking

ROOT = Path(__file__).resolve().parents[2]


def answer(told: dict[str, Any]) -> str:
    """The state and the line."""
    try:
        module = importlib.import_module(told["module"])
        line = getattr(module, told["name"])(Path(told["out"]), float(told["limit_s"]))
        return f"ok {line}"
    except Lacking as lacking:
        return f"skipped {lacking}"
    except ModuleNotFoundError as error:
        traceback.print_exc()
        return f"skipped {error.name} is not installed"
    except subprocess.TimeoutExpired as error:
        traceback.print_exc()
        return f"failed a program took more than {error.timeout:.0f} s: {error.cmd}"
    except RuntimeError as error:
        traceback.print_exc()
        return f"failed {error}"
    except Exception as error:
        traceback.print_exc()
        return f"failed {type(error).__name__}: {error}"


def main() -> None:
    told, descriptor = json.loads(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGTERM, _end)
    sys.path[1:1] = [str(ROOT), str(ROOT / "bench")]
    os.write(descriptor, " ".join(answer(told).split()).encode()[:8_000])


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
