"""Trainings by PyTorch without a GPU: unmodified programs, watched until two steps."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from client_plugin.prediction import findings
from client_plugin.prediction.findings import Findings
from client_plugin.prediction.watch import Watched, WatchOrder, watch
from nodemgr.core.forecast import features as manager
from tests.support.limits import WAIT_LIMIT_S

from .forked import HOOK, Forks, forks

pytestmark = pytest.mark.frameworks


def written(code: str, directory: Path) -> Path:
    (directory / "train.py").write_text(textwrap.dedent(code))
    return directory / "train.py"


def run(code: str, directory: Path, words: Sequence[str] = ()) -> Watched:
    """`words`: the command, where it is not the program alone."""
    program = written(code, directory)
    command = [*words] or [sys.executable, str(program)]
    variables = {
        **os.environ, "PYTHONPATH": str(HOOK), "NODEMGR_OFF": "1",
        "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    os.chdir(directory)
    path = shutil.which(command[0]) or command[0]
    return watch(WatchOrder(command, path, variables, WAIT_LIMIT_S, False))


@pytest.fixture(scope="module")
def programs() -> Iterator[Forks]:
    with forks("torch", "torch._dynamo", limit_s=WAIT_LIMIT_S) as started:
        yield started


def found(code: str, directory: Path, programs: Forks, before: str = "") -> Findings:
    return findings.find(programs.run(written(code, directory), before), WAIT_LIMIT_S)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


TRAINING = """
import nodemgr_client, torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Flatten(), nn.Dropout(), nn.Linear(8 * 15 * 15, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
data = TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)))
loader = DataLoader(data, batch_size=16, num_workers=2, pin_memory=True, persistent_workers=True)
nodemgr_client.progress(total=400)
best = float("inf")
for epoch in range(100):
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert not torch.isnan(loss), "a stand-in is a sound value"
        best = min(best, loss.item())
        print(f"{loss.item():.3f} {best:.3f}", loss.tolist())
        torch.save(model.state_dict(), f"checkpoint-{epoch}.pt")
raise SystemExit("it was not stopped")
"""


def test_an_unmodified_training_becomes_features(tmp_path: Path) -> None:
    answer = findings.find(run(TRAINING, tmp_path), WAIT_LIMIT_S)
    assert answer.reason is None
    assert answer.features is not None
    assert answer.features["framework"].split()[2] == "hybrid"
    assert str(tmp_path / "checkpoint-0.pt") in answer.dropped
    assert sorted(os.listdir(tmp_path)) == ["train.py"]
    read = manager.parse(answer.features)
    assert read.execution == (16, 400, 3 * 32 * 32)
    figures = dict(zip(manager.RICHER, read.richer, strict=True))
    assert figures["parameters"] == (3 * 9 + 1) * 8 + 2 * 8 + (8 * 225 + 1) * 10
    assert figures["depth"] == 2
    graph = dict(zip(manager.GRAPH, read.graph, strict=True))
    assert graph["conv2d"] == 16 * 3 * 32 * 32
    assert graph["relu"] == graph["maxpool"] == 16 * 8 * 30 * 30
    assert graph["matmul"] == 16 * 8 * 225
    by_precision = {row.precision: row.operations for row in read.work}
    assert by_precision.keys() == {"float16", "float32", "float64"}
    assert by_precision["float64"] == 1, "the scaler inverts its scale"
    products = [row.operations for row in read.work if row.precision == "float16"]
    convolution = 2 * (16 * 8 * 900) * 27
    matrices = 2 * 16 * 1_800 * 10
    assert sum(products) == 2 * convolution + 3 * matrices, "the image needs no gradient"


STEPS = """
import torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint
torch.backends.cudnn.enabled = torch.backends.cudnn.benchmark = True
assert torch.backends.cudnn.enabled
tied = nn.Linear(16, 16)
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = tied, nn.Linear(16, 16)
        self.two.weight = self.one.weight
    def forward(self, x):
        return self.two(checkpoint(lambda y: self.one(y).relu(), x, use_reentrant=False))
model = Tied()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # before the move
model.cuda()
assert model.one.weight is model.two.weight
assert torch.tensor([1.0, 2.0], device="cuda").sum().item() == 3.0
assert torch.arange(4, device="cuda").tolist() == [0, 1, 2, 3]
x = torch.randn(8, 16).cuda()
assert x.is_cuda and str(x.device) == "cuda:0" and not x.cpu().is_cuda
assert x[x > 0].shape[0] == 128, "a mask is taken as all true"
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 1).cuda()
sequences = nn.utils.rnn.pack_padded_sequence(x.expand(3, 8, 16), [8, 5, 2], batch_first=True)
assert sequences.data.shape == (15, 16) and sequences.batch_sizes.tolist()[1:4] == [3, 2, 2]
assert torch.equal(x, x + 1), "a question about values has the answer of a sound training"
assert torch.bincount(x[0].long().abs(), minlength=5).shape == (5,)
lstm, gru = nn.LSTM(16, 8, batch_first=True).cuda(), nn.GRU(8, 8, batch_first=True).cuda()
targets = torch.ones(1, 3, dtype=torch.long).cuda()
for _ in range(10):
    hidden, _ = lstm(torch.compile(encoder)(model(x)[None]))
    hidden, _ = gru(hidden)
    likelihoods = hidden.transpose(0, 1)
    nn.functional.ctc_loss(likelihoods, targets, [8], [3]).backward(retain_graph=True)
    hidden.float().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""


def test_what_scripts_do_beside_layers(tmp_path: Path, programs: Forks) -> None:
    seen = programs.run(written(STEPS, tmp_path))
    answer = findings.find(seen, WAIT_LIMIT_S)
    assert answer.features is not None, seen.last_line
    assert answer.features["richer"]["parameters"] == 16 * 16 + 16 + 16
    assert any("index" in note for note in answer.notes)


MASKED = """
import torch, torch.nn as nn
model = nn.Linear(16, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mask = torch.ones(1, 1, 2048, 2048, dtype=torch.bool).cuda().tril()
for _ in range(10):
    x = model(torch.randn(1, 1, 2048, 16).cuda())
    for _ in range(4):
        x = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
    x.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_mask_of_each_attention_is_kept_for_its_gradient(
    tmp_path: Path, programs: Forks
) -> None:
    answer = found(MASKED, tmp_path, programs)
    assert answer.features is not None, answer.reason
    bias_bytes = 4 * 2048 * 2048
    assert 4 * bias_bytes <= answer.features["memory"]["peak_bytes"] <= 6 * bias_bytes


OTHER_VERSION = """
import ctypes
class Library(ctypes.CDLL):
    def __init__(self, name, *args, **kwargs):
        if str(name).endswith("libc10.so"):
            raise OSError("other tables")
        super().__init__(name, *args, **kwargs)
ctypes.CDLL = Library
"""


@pytest.mark.parametrize("code", [TRAINING, STEPS], ids=["training", "steps"])
def test_another_version_of_pytorch_is_followed_on_meta(
    tmp_path: Path, programs: Forks, code: str
) -> None:
    answer = found(code, tmp_path, programs, OTHER_VERSION)
    assert answer.features is not None, answer.reason
    assert answer.features["framework"].split()[2] == "meta"
    assert "(OSError: other tables): tensors were on `meta`" in " ".join(map(str, answer.notes))
    if code is TRAINING:
        read = manager.parse(answer.features)
        assert read.execution == (16, 400, 3 * 32 * 32)
        graph = dict(zip(manager.GRAPH, read.graph, strict=True))
        assert graph["conv2d"] == 16 * 3 * 32 * 32
        assert graph["relu"] == graph["maxpool"] == 16 * 8 * 30 * 30


WHOLE = """
import torch
x = torch.ones(1 << 20, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([x], lr=0.1)
while True:
    torch.nn.functional.silu(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_an_operator_that_has_a_kernel_on_a_gpu_is_not_taken_to_pieces(
    tmp_path: Path, programs: Forks
) -> None:
    answer = found(WHOLE, tmp_path, programs)
    assert answer.features is not None
    read = manager.parse(answer.features)
    assert read.peak_bytes <= 22 << 20, "x, its gradient, the result of silu, and theirs"


SUMMED = """
import torch, torch.nn as nn
model = nn.Linear(1000, 1000).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for at in range(1, 100):
    model(torch.randn(8, 1000).cuda()).square().mean().backward()
    if at % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
TWO_OPTIMIZERS = """
import torch, torch.nn as nn
torch.set_default_device("cuda")
maker = nn.DataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 784)))
judge = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 1))
one = torch.optim.Adam(maker.parameters())
two = torch.optim.RMSprop(judge.parameters())
while True:
    made = maker(torch.randn(32, 64))
    two.zero_grad()
    judge(made.detach()).mean().backward()
    two.step()
    one.zero_grad()
    loss = judge(made).mean()
    loss.backward()
    one.step()
    assert float(loss) < 2 and loss.detach().cpu().numpy().mean() == 1
"""


def test_a_step_has_all_the_backward_passes_before_it(tmp_path: Path, programs: Forks) -> None:
    answer = found(SUMMED, tmp_path, programs)
    assert answer.features is not None
    assert answer.features["memory"]["peak_bytes"] >= 3 * 4 * 1_001_000, "weights to momentum"
    read = manager.parse(answer.features)
    matrices = 2 * 8 * 1_000 * 1_000
    assert sum(row.operations for row in read.work) >= 4 * 2 * matrices
    assert read.execution == (8, 0, 1_000)


def test_each_of_two_optimizers_steps_twice(tmp_path: Path, programs: Forks) -> None:
    answer = found(TWO_OPTIMIZERS, tmp_path, programs)
    assert answer.features is not None
    assert answer.features["richer"]["parameters"] == 109_456 + 100_609


BATCH_ON_GPU = """
import torch, torch.nn as nn
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)).cuda()
smooth, criterion = nn.Identity(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
labels = torch.arange(640).cuda() % 10
while True:
    x = torch.randn(64, 3, 32, 32, device="cuda")
    with torch.no_grad():
        model(x[:1])
    smooth(x[:2])
    criterion(model(input=x), labels[:64]).backward()
    optimizer.step()
"""


def test_a_batch_that_is_made_on_the_gpu_is_the_model_s_first_input(
    tmp_path: Path, programs: Forks
) -> None:
    answer = found(BATCH_ON_GPU, tmp_path, programs)
    assert answer.features is not None, answer.reason
    assert manager.parse(answer.features).execution == (64, 0, 3 * 32 * 32)


LOADED = """
import os, torch
torch.distributed.init_process_group("nccl") if "RANK" in os.environ else None
model = torch.nn.Linear(1000, 100).cuda()
kept = torch.load(os.path.join(os.path.dirname(__file__), "checkpoint.pt"), map_location="cuda")
assert kept["weight"].is_cuda
model.load_state_dict(kept)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    loss = model(torch.ones(8, 1000).cuda()).sum()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
WRAPPERS = {
    "bash": ["bash", "-c", 'for x in 1; do "$0" "$1"; done'],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_s_program_loads_its_checkpoint(tmp_path: Path, name: str) -> None:
    import torch

    torch.save(torch.nn.Linear(1_000, 100).state_dict(), tmp_path / "checkpoint.pt")
    words = [sys.executable, str(tmp_path / "train.py")]
    words = [*WRAPPERS[name], *(words if name == "bash" else words[1:])]
    seen = run(LOADED, tmp_path, words)
    answer = findings.find(seen, WAIT_LIMIT_S)
    assert answer.features is not None, (answer.reason, seen.last_line)
    assert answer.features["richer"]["parameters"] == 100_100


RANKS = """
import os, threading, torch, torch.distributed as dist
from torch.nn.parallel.distributed import DistributedDataParallel
assert not dist.is_initialized()
os.environ["LOCAL_WORLD_SIZE"] = "1"  # the other rank is on another node
dist.init_process_group("nccl", rank=1, world_size=2)
assert dist.is_initialized() and dist.get_process_group_ranks(None) == [0, 1]
assert DistributedDataParallel is torch.nn.parallel.DistributedDataParallel
assert (dist.get_rank(), dist.get_world_size()) == (1, 2)
torch.cuda.set_device(1)
layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(layers).cuda()
model = DistributedDataParallel(model, [1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    with torch.profiler.profile() as profile:
        while True:
            torch.cuda.nvtx.range_push("step")
            loss = model(torch.ones(8, 8)).sum() + torch.ones(1).to(1).sum()
            loss.backward()
            parts = [torch.zeros_like(loss) for _ in range(2)]
            dist.all_gather(parts, loss.detach())
            dist.irecv(parts[0], 0).wait()
            names = [None, None]
            dist.all_gather_object(names, "own")
            assert names == ["own", "own"]
            assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] > 0
            assert torch.cuda.memory_stats()["num_ooms"] == 0
            optimizer.step()
            profile.step()
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


def test_a_rank_trains_in_a_thread_of_its_own(tmp_path: Path, programs: Forks) -> None:
    seen = programs.run(written(RANKS, tmp_path))
    answer = findings.find(seen, WAIT_LIMIT_S)
    assert answer.features is not None, (answer.reason, seen.last_line)
    assert not answer.notes, "two steps were seen"


READING_RANKS = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def train(rank):
    dist.init_process_group("nccl", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        model(torch.ones(2, 8).cuda()).sum().backward()
        if rank == 0:
            with open("state", "w") as file:  # a reader finds it empty meanwhile
                time.sleep(0.1)
                file.write(str(step))
        dist.barrier()
        with open("state") as file:
            assert file.read() == str(step), f"step {step}"
        time.sleep(0.1 * rank)
        optimizer.step()
for rank in range(2):
    if os.fork() == 0:
        train(rank)
for rank in range(2):
    assert os.wait()[1] == 0
"""


def test_a_rank_reads_a_file_after_another_has_written_it(tmp_path: Path, programs: Forks) -> None:
    seen = programs.run(written(READING_RANKS, tmp_path))
    answer = findings.find(seen, WAIT_LIMIT_S)
    assert answer.features is not None, (answer.reason, seen.last_line)
    assert not any("is_crash" in one for one in seen.outcomes.values()), seen.last_line
    assert any(one.get("steps") == 2 for one in seen.outcomes.values())


WITHOUT_OPTIMIZER = {
    "derived": """
        import torch
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        while True:
            loss = (torch.ones(8, 64, device="cuda") @ weight).pow(2).mean()
            inner, = torch.autograd.grad(loss, weight, create_graph=True)
            outer, = torch.autograd.grad(loss + inner.pow(2).sum(), weight)
            with torch.no_grad():
                weight -= 0.1 * outer
        """,
    "checkpointed": """
        import torch
        from torch.utils.checkpoint import checkpoint
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        layer = lambda inputs: inputs @ weight
        while True:
            inputs = torch.ones(8, 64, device="cuda", requires_grad=True)
            for _ in range(4):
                inputs = checkpoint(layer, inputs, use_reentrant=True)
            inputs.mean().backward()
        """,
}


@pytest.mark.parametrize("name", WITHOUT_OPTIMIZER)
def test_a_training_without_an_optimizer_stops_after_three_gradients(
    tmp_path: Path, programs: Forks, name: str
) -> None:
    """Gradients inside of a step are not counted."""
    seen = programs.run(written(WITHOUT_OPTIMIZER[name], tmp_path))
    assert [one.get("backwards") for one in seen.outcomes.values()] == [3], seen.last_line


LBFGS = """
import torch
weight = torch.ones(1 << 20, device="cuda", requires_grad=True)
optimizer = torch.optim.LBFGS([weight], history_size=20)
def closure():
    optimizer.zero_grad()
    loss = weight.square().sum()
    loss.backward()
    return loss
while True:
    optimizer.step(closure)
"""


def test_the_history_of_lbfgs_is_full(tmp_path: Path, programs: Forks) -> None:
    answer = found(LBFGS, tmp_path, programs)
    assert answer.features is not None, answer.reason
    assert 40 << 22 <= answer.features["memory"]["peak_bytes"] <= 60 << 22
    assert any("(the history of LBFGS)" in str(note) for note in answer.notes)


def test_a_training_that_ends_after_a_gradient_has_its_memory(
    tmp_path: Path, programs: Forks
) -> None:
    code = "import torch\ntorch.ones(64, device='cuda', requires_grad=True).sum().backward()"
    answer = found(code, tmp_path, programs)
    assert answer.features is not None, answer.reason
    assert any("one training step" in str(note) for note in answer.notes)


def test_the_state_of_a_generator_comes_back_from_the_gpu(tmp_path: Path, programs: Forks) -> None:
    """As accelerate gives each rank the same one."""
    answer = found(
        """
        import torch
        state = torch.get_rng_state()
        assert torch.equal(state.to("cuda").cpu(), state)
        torch.set_rng_state(state.to("cuda").cpu())
        weight = torch.ones(8, device="cuda", requires_grad=True)
        for _ in range(3):
            weight.sum().backward()
        """,
        tmp_path,
        programs,
    )
    assert answer.features is not None, answer.reason


SAVED = """
import io, os, pathlib, pickle, torch, torch.nn as nn
def shares(one, other):
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
model[1].weight = model[0].weight
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": torch.arange(3)}
state.update(wide=torch.ones(9, 9).cuda(), rate=torch.tensor(0.5).cuda())
torch.save(obj=state, f=pathlib.Path("fresh"))
os.replace("fresh", "checkpoint.pt")
state = torch.load("checkpoint.pt")
assert state["seen"].tolist() == [0, 1, 2], "a tensor of the processor keeps its values"
assert state["rate"].item() == 0.5, "a value that is known is in the file"
weights = state["model"]
assert weights["0.weight"].is_cuda and shares(weights["0.weight"], weights["1.weight"])
assert not shares(weights["0.weight"], weights["0.bias"])
model.load_state_dict(weights)
optimizer.load_state_dict(state["optimizer"])
for place in ("cpu", {"cuda:0": "cpu"}, lambda storage, location: storage):
    state = torch.load("checkpoint.pt", place, weights_only=True)
    assert not state["rate"].is_cuda and state["rate"] == 0.5
    assert not state["wide"].is_cuda and state["wide"].sum() == 0
asked = []
def on_other_gpu(storage, location):
    asked.append(location)
    return storage.cuda(1) if location == "cuda:0" else None
state = torch.load("checkpoint.pt", map_location=on_other_gpu, weights_only=True)
assert set(asked) == {"cuda:0", "cpu"}
assert state["wide"].is_cuda and state["rate"].item() == 0.5 and not state["seen"].is_cuda
restore = torch.serialization.default_restore_location
assert torch.load("checkpoint.pt", lambda storage, tag: restore(storage, "cuda:1"))["seen"].is_cuda
assert torch.load("checkpoint.pt", lambda storage, tag: None)["wide"].is_cuda
def unknown(storage, location):
    raise LookupError(location)
torch.save(torch.ones(2), "real.pt")
for file in ("checkpoint.pt", "real.pt"):
    try:
        torch.load(file, unknown)
        raise SystemExit("the function was not asked")
    except LookupError as error:
        names = []
        trace = error.__traceback__
        while trace:
            names.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        assert names[-1] == "unknown", names
for options in ({}, {"_use_new_zipfile_serialization": False}):
    file = io.BytesIO()
    torch.save(model, file, **options)
    file.seek(0)
    model = torch.load(file, weights_only=False)
    assert model[0].weight is model[1].weight and model[0].weight.is_cuda
assert pickle.loads(pickle.dumps(torch.arange(3))).tolist() == [0, 1, 2]
assert pickle.loads(pickle.dumps(model))[0].weight.is_cuda
torch.save(nn.Linear(2, 2), "small.pt")
assert not torch.load("small.pt", weights_only=False).weight.is_cuda
assert torch.load("small.pt", "cuda:0", weights_only=False).weight.is_cuda
torch.save([nn.Parameter(torch.ones(2))] * 2, "list.pt")
one, other = torch.load("list.pt", "cuda")
assert one.is_leaf and one.is_cuda and shares(one, other)
try:
    torch.save(model, "absent/model.pt")
except RuntimeError as error:
    assert "absent" in str(error)
places = {one.data_ptr() for one in model.parameters()}
assert 0 not in places and len(places) == 3
with torch.cuda.stream(stream=torch.cuda.Stream()):
    torch.cuda.random.set_rng_state(torch.cuda.random.get_rng_state())
assert torch.zeros(4, pin_memory=True).sum() == 0
rows = torch.ones(4, 4).cuda()
assert rows[1:].data_ptr() == rows.data_ptr() + 16
assert rows[1:].untyped_storage().data_ptr() == rows.data_ptr()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 8).cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("before", ["", OTHER_VERSION], ids=["hybrid", "meta"])
def test_a_saved_file_is_loaded_again(tmp_path: Path, programs: Forks, before: str) -> None:
    seen = programs.run(written(SAVED, tmp_path), before)
    answer = findings.find(seen, WAIT_LIMIT_S)
    assert answer.features is not None, (answer.reason, seen.last_line)
    assert answer.features["richer"]["parameters"] == 80
    assert {"checkpoint.pt", "small.pt"} <= {path.name for path in tmp_path.iterdir()}


KINDS = """
import io, torch, torch.nn as nn
class Tagged(nn.Parameter):
    def hello(self):
        return "hello"
class Image(torch.Tensor):
    pass
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Tagged(torch.ones(3))
        self.scale.group = "scales"
        self.first, self.norm = nn.LazyLinear(8), nn.LazyBatchNorm1d(device="cuda")
        self.first.weight.tag = [1]
    def forward(self, x):
        return self.norm(self.first(x * self.scale))
model = Layer().cuda()
assert model.scale.is_cuda and isinstance(model.scale, Tagged)
assert isinstance(model.scale, nn.Parameter)
assert model.scale.group == "scales" and model.scale.hello() == "hello"
model(torch.ones(2, 3).cuda())
assert type(model.first) is nn.Linear
assert model.first.weight.is_cuda and model.norm.running_mean.is_cuda
assert model.first.weight.shape == (8, 3) and model.first.weight.tag == [1]
image = torch.ones(2, 3).as_subclass(Image).cuda()
image.source = "file"
assert isinstance(image + 1, Image) and isinstance(image * torch.ones(3).cuda(), Image)
assert type(image.cpu()) is Image
file = io.BytesIO()
real = torch.ones(1).as_subclass(Image)
torch.save({"model": model, "image": image, "scale": model.scale, "real": real}, file)
for place in (None, "cpu"):
    file.seek(0)
    state = torch.load(file, place, weights_only=False)
    assert isinstance(state["image"], Image) and state["image"].source == "file"
    assert state["scale"].group == "scales" and isinstance(state["scale"], nn.Parameter)
    assert state["model"].first.weight.tag == [1]
    assert state["image"].is_cuda == (place is None)
    assert type(state["real"]) is Image
file.seek(0)
assert isinstance(torch.load(file, "cuda", weights_only=False)["real"], Image)
file = io.BytesIO()
model.load_state_dict(model.state_dict())
optimizer = torch.optim.Adam(model.parameters())
while True:
    model(image).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("before", ["", OTHER_VERSION], ids=["hybrid", "meta"])
def test_a_tensor_keeps_its_class_and_attributes(
    tmp_path: Path, programs: Forks, before: str
) -> None:
    seen = programs.run(written(KINDS, tmp_path), before)
    answer = findings.find(seen, WAIT_LIMIT_S)
    assert answer.features is not None, (answer.reason, seen.last_line)
    assert answer.features["richer"]["parameters"] == 3 + 3 * 8 + 8 + 2 * 8


UNCONFINED = """
import os
os.environ["NODEMGR_PREDICT_CONFINED"] = "0"
"""
"""Run before torch is adapted."""
TRAINED = """
import copy, io, pathlib, pickle, torch
weight = torch.ones(64, 64, device="cuda", requires_grad=True)
{save}
copy.deepcopy(weight.detach())
while True:
    weight.sum().backward()
"""


@pytest.mark.parametrize("file", ["'own.pt'", "pathlib.Path('own.pt')", "open('own.pt', 'rb+')"])
def test_without_a_view_of_the_disk_no_file_is_saved(
    tmp_path: Path, programs: Forks, file: str
) -> None:
    (tmp_path / "own.pt").write_bytes(b"a checkpoint with values")
    seen = programs.run(
        written(TRAINED.format(save=f"torch.save(weight, {file})"), tmp_path), UNCONFINED
    )
    answer = findings.find(seen, WAIT_LIMIT_S)
    assert answer.features is not None, (answer.reason, seen.last_line)
    assert answer.dropped == [str(tmp_path / "own.pt")]
    assert (tmp_path / "own.pt").read_bytes() == b"a checkpoint with values"


@pytest.mark.parametrize(
    "save",
    [
        "file = io.BytesIO(); torch.save({'w': weight}, file); path.write_bytes(file.getvalue())",
        "path.write_bytes(pickle.dumps(weight))",
    ],
    ids=["memory", "pickle"],
)
def test_without_a_view_of_the_disk_no_bytes_for_a_file_are_made(
    tmp_path: Path, programs: Forks, save: str
) -> None:
    save = "path = pathlib.Path('own.pt')\n" + save
    (tmp_path / "own.pt").write_bytes(b"a checkpoint with values")
    seen = programs.run(written(TRAINED.format(save=save), tmp_path), UNCONFINED)
    answer = findings.find(seen, WAIT_LIMIT_S)
    assert "leave --unconfined out" in str(answer.reason), seen.last_line
    assert (tmp_path / "own.pt").read_bytes() == b"a checkpoint with values"


FORKED = {
    "fork": """
        import os
        if os.fork() == 0:
            train()
        os.wait()
        """,
    "multiprocessing": """
        import multiprocessing
        process = multiprocessing.get_context("fork").Process(target=train)
        process.start()
        process.join()
        """,
}


@pytest.mark.parametrize("name", FORKED)
def test_a_forked_process_trains(tmp_path: Path, programs: Forks, name: str) -> None:
    train = """
        import torch
        torch.set_num_threads(2)
        def train():
            weight = torch.ones(64, 64, device="cuda", requires_grad=True)
            while True:
                (torch.ones(8, 64).cuda() @ weight).mean().backward()
        """
    seen = programs.run(written(textwrap.dedent(train) + textwrap.dedent(FORKED[name]), tmp_path))
    answer = findings.find(seen, WAIT_LIMIT_S)
    assert answer.features is not None, (answer.reason, seen.last_line)
    assert len(seen.outcomes) == 2, "each process has a file of its own"


def test_a_child_forked_after_a_use_of_the_gpu_is_not_watched(
    tmp_path: Path, programs: Forks
) -> None:
    """It has no use of the GPU: its backward passes on the processor say nothing."""
    seen = programs.run(
        written(
            """
            import os, torch
            weight = torch.ones(2, 2, device="cuda", requires_grad=True)
            if os.fork() == 0:
                other = torch.ones(2, requires_grad=True)
                for _ in range(9):
                    other.sum().backward()
                raise SystemExit
            os.wait()
            for _ in range(9):
                weight.sum().backward()
            """,
            tmp_path,
        )
    )
    assert [one.get("backwards") for one in seen.outcomes.values()] == [3], seen.last_line


@pytest.mark.parametrize("count", [3, 999])
def test_a_training_is_resumed_with_another_optimizer(
    tmp_path: Path, programs: Forks, count: int
) -> None:
    program = f"""
        import torch
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        made = []
        for steps in (1, {count}):
            made.append(torch.optim.Adam([weight]))
            for _ in range(steps):
                weight.sum().backward()
                made[-1].step()
        assert steps < 999, "it is ended before"
        """
    answer = findings.find(programs.run(written(program, tmp_path)), WAIT_LIMIT_S)
    assert answer.features is not None, answer.reason
    assert not any("one training step" in str(note) for note in answer.notes)


def test_a_forked_process_on_the_processor_ends_nothing(tmp_path: Path, programs: Forks) -> None:
    program = """
        import os, torch
        reading, writing = os.pipe()
        if os.fork() == 0:
            other = torch.ones(2, requires_grad=True)
            for _ in range(9):
                other.sum().backward()
            os.write(writing, b"all passes")
            raise SystemExit
        os.wait()
        os.close(writing)
        assert os.read(reading, 99) == b"all passes"
        weight = torch.ones(2, 2, device="cuda", requires_grad=True)
        for _ in range(9):
            weight.sum().backward()
        """
    seen = programs.run(written(program, tmp_path))
    answer = findings.find(seen, WAIT_LIMIT_S)
    assert answer.features is not None, (answer.reason, seen.last_line)
    assert not any(one.get("is_certain") for one in seen.outcomes.values())


REASONS = {
    "the program ended without a backward pass": "torch.ones(2).cuda().sum().item()",
    "exit code 1 before a training step (FileNotFoundError": "open('absent')",
    "the program put no tensor on a GPU": "torch.ones(2).sum()",
    "the program ended without a backward pass:": """
        import os
        if os.fork() == 0:
            torch.ones(2).cuda()
            os._exit(0)
        os.wait()
        """,
    "command forked ended before a training step (ValueError: no labels in this file)": """
        import os
        if os.fork() == 0:
            torch.ones(2).cuda()
            raise ValueError("no labels\\nin this file")
        os.wait()
        """,
    "forked ended before a training step (FileNotFoundError: [Errno 2]": """
        import multiprocessing
        def train():
            torch.ones(2, requires_grad=True).cuda().sum().backward()
            open("absent")
        process = multiprocessing.get_context("fork").Process(target=train)
        process.start()
        process.join()
        """,
    "exit code 1 before a training step (ValueError: after": """
        weight = torch.ones(2, device="cuda", requires_grad=True)
        torch.optim.Adam([weight])
        weight.sum().backward()
        raise ValueError("after a backward pass")
        """,
    "makes a tensor with the layout torch.sparse_coo, whose memory depends on values": """
        layer = torch.nn.Embedding(8, 8, sparse=True).cuda()
        layer(torch.ones(2, dtype=torch.long).cuda()).sum().backward()
        """,
    "with the layout torch.jagged, whose memory depends on values": """
        rows = [torch.ones(2, 4), torch.ones(3, 4)]
        nested = torch.nested.nested_tensor(rows, device="cuda", layout=torch.jagged)
        torch.nn.Linear(4, 4).cuda()(nested)
        """,
    "operator aten._to_sparse.default has no form": """
        import multiprocessing
        def train():
            torch.ones(2, 2).cuda().to_sparse()
        process = multiprocessing.get_context("fork").Process(target=train)
        process.start()
        process.join()
        """,
    "operator own.thing.default has no form without a GPU": """
        library = torch.library.Library("own", "DEF")
        library.define("thing(Tensor x) -> Tensor")
        library.impl("thing", lambda x: x * 2, "CPU")
        torch.ops.own.thing(torch.ones(2).cuda())
        """,
    "the program shards a model over ranks": """
        torch.distributed.init_process_group()
        torch.distributed.device_mesh.init_device_mesh("cuda", (2,))
        """,
    "the program shards a model over ranks (": """
        from torch.distributed.fsdp import FullyShardedDataParallel
        torch.distributed.init_process_group(rank=0, world_size=2)
        FullyShardedDataParallel(torch.nn.Linear(2, 2).cuda())
        """,
    "the program passes tensors on the GPU to another process": """
        import torch.multiprocessing
        if __name__ == "__main__":
            model = torch.nn.Linear(2, 2).cuda().share_memory()
            torch.multiprocessing.set_start_method("spawn")
            torch.multiprocessing.Process(target=print, args=(model,)).start()
        """,
    "trains on the processor: move": """
        weight = torch.ones(2, requires_grad=True)
        for _ in range(4):
            weight.sum().backward()
        """,
    "the program trains on the processor": """
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            model(torch.ones(2, 2)).sum().backward()
            optimizer.step()
        """,
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_program_without_a_training_has_a_reason(
    tmp_path: Path, programs: Forks, reason: str
) -> None:
    answer: Any = found("import torch\n" + textwrap.dedent(REASONS[reason]), tmp_path, programs)
    assert answer.features is None
    assert reason in answer.reason


CTC = """
import torch
model = torch.nn.Linear(64, 20).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    logits = model(torch.zeros(50, 16, 64, device="cuda")).log_softmax(2)
    targets = torch.randint(1, 20, (16, 30), device={targets})
    lengths = torch.full((16,), 50), torch.full((16,), 30, device={lengths})
    torch.nn.CTCLoss()(logits, targets, *lengths).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("before", ["", OTHER_VERSION], ids=["hybrid", "meta"])
@pytest.mark.parametrize("lengths", ["'cpu'", "'cuda'"])
@pytest.mark.parametrize("targets", ["'cpu'", "'cuda'"])
def test_the_lengths_of_ctc_may_be_the_processor_s(
    tmp_path: Path, programs: Forks, targets: str, lengths: str, before: str
) -> None:
    code = CTC.format(targets=targets, lengths=lengths)
    answer = found(code, tmp_path, programs, before)
    assert answer.features is not None, answer.reason
    known = found(CTC.format(targets="'cuda'", lengths="'cuda'"), tmp_path, programs, before)
    assert known.features is not None
    assert answer.features["memory"] == known.features["memory"]


GPUS = """
import torch
{begin}
first, second = torch.nn.Linear(64, 64).to({first}), torch.nn.Linear(64, 64).to({second})
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
for _ in range(3):
    near = first(torch.zeros(16, 64).to({first}))
    second(near.to({second})).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("begin", "first", "second", "count"),
    [
        ("", "0", "'cuda:1'", 2),
        ("", "'cuda:1'", "'cuda:2'", 2),
        ("", "'cuda'", "0", 1),
        ("", "'cuda:1'", "second_of(1)", 1),
        ("torch.cuda.set_device(1)", "'cuda'", "'cuda:1'", 1),
    ],
)
def test_a_model_over_two_gpus_has_no_figure(
    tmp_path: Path, programs: Forks, begin: str, first: str, second: str, count: int
) -> None:
    """A tensor of the GPU says that it is on 0, whichever the program has named."""
    second = second.replace("second_of(1)", "torch.zeros(1).to('cuda:1').device")
    code = GPUS.format(begin=begin, first=first, second=second)
    answer = found(code, tmp_path, programs)
    assert (answer.features is None) is (count > 1), answer.reason
    assert count == 1 or "puts its tensors on 2 GPUs" in str(answer.reason)
