"""Writes tests/wire/golden anew from the table below: `python -m tests.wire.make_golden`.

The bytes are written out here by hand, not encoded, so that neither codec is its own judge. A
change of the wire shows as a change of these files. GOLDEN: name -> (direction, packet, verb,
fields as Python has them).
"""

from __future__ import annotations

from pathlib import Path

from nodemgr.edge.rpc.wire import Value

DIRECTORY = Path(__file__).with_name("golden")
TASK = "0123456789abcdef" * 2
A, B = (f"GPU-{letter * 8}-1111-2222-3333-444444444444" for letter in "ab")
SIXTEEN = tuple(f"GPU-{index:08x}-1111-2222-3333-444444444444" for index in range(16))

GOLDEN: dict[str, tuple[str, bytes, str, dict[str, Value]]] = {
    "acquire": (
        "UP",

            b"NODEMGR/1 "
            b"ACQUIRE\nrid=4503599627370495\ntask=%b\ngpus=2\nmemory=8589934592\nworld=2\n"
            b"wait_ms=90000\n"

        b"command=python train.py --rate=100%%25 %%0a \xc3\xa4\n" % TASK.encode(),
        "ACQUIRE",
        {"rid": 4503599627370495, "task": TASK, "gpus": 2, "memory": 8589934592, "world": 2,
            "wait_ms": 90000,
         "command": "python train.py --rate=100% \n \u00e4"},
    ),
    "acquire_bare": ("UP", b"NODEMGR/1 ACQUIRE\nrid=0\ntask=a\n", "ACQUIRE",
        {"rid": 0, "task": "a"}),
    "acquire_share": (
        "UP",
        b"NODEMGR/1 ACQUIRE\nrid=1\ntask=a\nclass=best-effort\ncompute=30\ndeadline_ms=7200000\n"
        b"gated=1\n",
        "ACQUIRE",
        {"rid": 1, "task": "a", "class": "best-effort", "compute": 30, "deadline_ms": 7200000,
            "gated": 1},
    ),
    "acquire_program": (
        "UP", b"NODEMGR/1 ACQUIRE\nrid=1\ntask=a\nstarts=1\nvisible=index\n", "ACQUIRE",
        {"rid": 1, "task": "a", "starts": 1, "visible": "index"},
    ),
    "acquire_udp": (
        "UP",
        (
            b"NODEMGR/1 "
            b"ACQUIRE\nrid=1\ntask=a\nenv=alice\nepoch=18446744073709551615\nclient=00ff\n"
            b"counter=12\n"
            ),
        "ACQUIRE",
        {"rid": 1, "task": "a", "env": "alice", "epoch": 18446744073709551615, "client": "00ff",
            "counter": 12},
    ),
    "cancel": ("UP", b"NODEMGR/1 CANCEL\nrid=7\n", "CANCEL", {"rid": 7}),
    "rejoin": (
        "UP", b"NODEMGR/1 REJOIN\nrid=8\ntask=a\nlease=t17\nslot=1023\ngeneration=65535\n",
        "REJOIN",
        {"rid": 8, "task": "a", "lease": "t17", "slot": 1023, "generation": 65535},
    ),
    "progress": (
        "UP",
        b"NODEMGR/1 PROGRESS\ntask=%b\ndone=7\ntotal=9007199254740992\n" % TASK.encode(),
        "PROGRESS",
        {"task": TASK, "done": 7, "total": 9007199254740992},
    ),
    "progress_bare": ("UP", b"NODEMGR/1 PROGRESS\ntask=a\ndone=0\n", "PROGRESS",
        {"task": "a", "done": 0}),
    "beat": ("UP", b"NODEMGR/1 BEAT\ntask=%b\n" % TASK.encode(), "BEAT", {"task": TASK}),
    "acquire_range": (
        "UP", b"NODEMGR/1 ACQUIRE\nrid=1\ntask=a\ngpus=1\ngpus_max=4\nelastic=1\n", "ACQUIRE",
        {"rid": 1, "task": "a", "gpus": 1, "gpus_max": 4, "elastic": 1},
    ),
    "acquire_memory_range": (
        "UP", b"NODEMGR/1 ACQUIRE\nrid=1\ntask=a\nmemory=1\nmemory_max=4\n", "ACQUIRE",
        {"rid": 1, "task": "a", "memory": 1, "memory_max": 4},
    ),
    "acquire_worker": (
        "UP", b"NODEMGR/1 ACQUIRE\nrid=1\ntask=a\nworker_gpu=%b\n" % A.encode(), "ACQUIRE",
        {"rid": 1, "task": "a", "worker_gpu": A},
    ),
    **{
        verb.lower(): (
            "UP", f"NODEMGR/1 {verb}\nrid=1\ntask=a\ngpu={A}\n".encode(), verb,
            {"rid": 1, "task": "a", "gpu": A},
        )
        for verb in ("ACCEPTED", "DECLINED", "LEFT")
    },
    "offer": ("DOWN", b"NODEMGR/1 OFFER\nlease=t17\ngpu=%b\n" % A.encode(), "OFFER",
        {"lease": "t17", "gpu": A}),
    "recall": (
        "DOWN",
        b"NODEMGR/1 RECALL\nlease=t17\ngpu=%b\nrecall_ms=10000\nreason=r9 waits\n" % A.encode(),
        "RECALL",
        {"lease": "t17", "gpu": A, "recall_ms": 10000, "reason": "r9 waits"},
    ),
    "withdrawn": ("DOWN", b"NODEMGR/1 WITHDRAWN\nlease=t17\ngpu=%b\n" % A.encode(), "WITHDRAWN",
        {"lease": "t17", "gpu": A}),
    "release": ("UP", b"NODEMGR/1 RELEASE\nrid=9\ntask=a\n", "RELEASE", {"rid": 9, "task": "a"}),
    "ask": ("UP", b"NODEMGR/1 ASK\nrid=10\nwhat=release\nargument=t17\n", "ASK",
        {"rid": 10, "what": "release", "argument": "t17"}),
    "hello": ("UP", b"NODEMGR/1 HELLO\nrid=11\nenv=alice\n", "HELLO", {"rid": 11, "env": "alice"}),
    "runner": ("UP", b"NODEMGR/1 RUNNER\nrid=12\nform=2\n", "RUNNER", {"rid": 12, "form": 2}),
    "claim": ("UP", b"NODEMGR/1 CLAIM\nrid=13\njob=j12.3\nattempt=2\n", "CLAIM",
        {"rid": 13, "job": "j12.3", "attempt": 2}),
    "running": (
        "UP", b"NODEMGR/1 RUNNING\nrid=14\njob=j12\nattempt=1\ntext=started 5 6 7 0\n", "RUNNING",
        {"rid": 14, "job": "j12", "attempt": 1, "text": "started 5 6 7 0"}),
    "output": (
        "UP", b"NODEMGR/1 OUTPUT\nrid=15\njob=j12\nattempt=1\nat=65536\nsize=12\n", "OUTPUT",
        {"rid": 15, "job": "j12", "attempt": 1, "at": 65536, "size": 12}),
    "ended": (
        "UP", b"NODEMGR/1 ENDED\nrid=16\njob=j12\nattempt=1\ntext=ended 9 4 - 0 \n", "ENDED",
        {"rid": 16, "job": "j12", "attempt": 1, "text": "ended 9 4 - 0 "}),
    "failed": (
        "UP", b"NODEMGR/1 FAILED\njob=j12\nattempt=1\nreason=no process%0a\n", "FAILED",
        {"job": "j12", "attempt": 1, "reason": "no process\n"},
    ),
    "later_version": ("UP", b"NODEMGR/1 BEAT\nmood=%41ll well\ntask=a\nlater=\n", "BEAT",
        {"task": "a"}),
    "grant": (
        "DOWN",

            "NODEMGR/1 "
            f"GRANT\nrid=1\ntask=a\nlease=t17\ngpus={A},{B}\nvisible=0,3\nslot=4\ngeneration=2\n"
            f"rows=0,3\n"

        f"limits=10737418240,85899345920\nbeat_ms=1000\n".encode(),
        "GRANT",
        {"rid": 1, "task": "a", "lease": "t17", "gpus": (A, B), "visible": ("0", "3"), "slot": 4,
            "generation": 2, "rows": (0, 3),
         "limits": (10737418240, 85899345920), "beat_ms": 1000},
    ),
    "grant_gated": (
        "DOWN",
        (
            f"NODEMGR/1 GRANT\nrid=1\ntask=a\nlease=t17\ngpus={A},{B}\nrows=0,3\nlimits=1,2\n"
            "gates=63,0\nthreads=30\n"
        ).encode(),
        "GRANT",
        {"rid": 1, "task": "a", "lease": "t17", "gpus": (A, B), "visible": (A, B), "rows": (0, 3),
         "limits": (1, 2), "gates": (63, 0), "threads": 30},
    ),
    "grant_sixteen": (
        "DOWN",
        (
            "NODEMGR/1 "
            f"GRANT\nrid=1\ntask={TASK}\nlease=t17\ngpus={','.join(SIXTEEN)}\nslot=4\n"
            f"generation=2\n"

         f"rows={','.join(map(str, range(16)))}\nlimits={','.join(['85899345920'] * 16)}\n"
         f"beat_ms=1000\n").encode(),
        "GRANT",
        {"rid": 1, "task": TASK, "lease": "t17", "gpus": SIXTEEN, "visible": SIXTEEN, "slot": 4,
            "generation": 2,
         "rows": tuple(range(16)), "limits": (85899345920,) * 16, "beat_ms": 1000},
    ),
    "wait": (
        "DOWN", (
            b"NODEMGR/1 WAIT\nrid=1\nposition=3\nreason=3rd in the queue; bob holds GPU "
            b"0%1b\n"
            ), "WAIT",
        {"rid": 1, "position": 3, "reason": "3rd in the queue; bob holds GPU 0\x1b"},
    ),
    "deny": ("DOWN", b"NODEMGR/1 DENY\nrid=1\ncode=no_gpu\nreason=\n", "DENY",
        {"rid": 1, "code": "no_gpu", "reason": ""}),
    "fence": ("DOWN", b"NODEMGR/1 FENCE\nlease=t17\nreason=gone\n", "FENCE",
        {"lease": "t17", "reason": "gone"}),
    "note": ("DOWN", b"NODEMGR/1 NOTE\ntext=a=b,c\n", "NOTE", {"text": "a=b,c"}),
    "ack": ("DOWN", b"NODEMGR/1 ACK\nrid=2\n", "ACK", {"rid": 2}),
    "part": (
        "DOWN", b"NODEMGR/1 PART\nrid=10\nindex=0\ncount=2\ndata={\"tasks\": [\n".replace(b"[\n",
            b"[%0a\n"), "PART",
        {"rid": 10, "index": 0, "count": 2, "data": '{"tasks": [\n'},
    ),
    "start": ("DOWN", b"NODEMGR/1 START\njob=j12.3\nattempt=2\n", "START",
        {"job": "j12.3", "attempt": 2}),
    "claimed": (
        "DOWN", b"NODEMGR/1 CLAIMED\nrid=13\nat=65548\nsize=268435456\nlimit_ms=5000\n", "CLAIMED",
        {"rid": 13, "at": 65548, "size": 2**28, "limit_ms": 5000}),
    "limit": ("DOWN", b"NODEMGR/1 LIMIT\njob=j12\nattempt=1\nlimit_ms=7000\n", "LIMIT",
        {"job": "j12", "attempt": 1, "limit_ms": 7000}),
    "dismiss": ("DOWN", b"NODEMGR/1 DISMISS\nreason=no job of this place is left\n", "DISMISS",
                {"reason": "no job of this place is left"}),
    "epoch": ("DOWN", b"NODEMGR/1 EPOCH\nrid=11\nepoch=3\nclient=00ff\ncounter=1\n", "EPOCH",
              {"rid": 11, "epoch": 3, "client": "00ff", "counter": 1}),
}  # fmt: skip


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, (_, packet, _, _) in GOLDEN.items():
        (DIRECTORY / f"{name}.packet").write_bytes(packet)


if __name__ == "__main__":
    main()
