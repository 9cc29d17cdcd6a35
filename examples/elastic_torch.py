"""An elastic training of handwritten digits with PyTorch.

python elastic_torch.py [--epochs 20] [--checkpoint FILE]

The data are scikit-learn's digits, or made ones where scikit-learn is not installed. Alone it
trains on one device. The workers of an elastic task share each global batch, and their number may
change after any step.
"""

import argparse

import torch
from nodemgr_client import elastic
from torch import nn

GLOBAL_BATCH = 128
MAX_PER_GPU = 32
TESTED = 297


def digits():
    """1797 images of 8 x 8 values between 0 and 1, and their classes."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return made_digits()
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32) / 16
    return images.unsqueeze(1), torch.tensor(found.target)


def made_digits():
    """Ten patterns, each shifted and blurred by noise."""
    numbers = torch.Generator().manual_seed(0)
    patterns = (torch.rand(10, 1, 8, 8, generator=numbers) > 0.6).float()
    classes = torch.randint(0, 10, (1797,), generator=numbers)
    shifts = torch.randint(-1, 2, (1797,), generator=numbers)
    images = torch.stack(
        [torch.roll(patterns[c], int(s), 2) for c, s in zip(classes, shifts, strict=True)]
    )
    return images + 0.3 * torch.randn(images.shape, generator=numbers), classes


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def accuracy(model, images, classes):
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        right = model(images.to(device)).argmax(1).cpu() == classes
    model.train()
    return right.float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint")
    chosen = parser.parse_args()
    images, classes = digits()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    training = (images[TESTED:], classes[TESTED:])
    with elastic(
        model,
        optimizer,
        training,
        global_batch=GLOBAL_BATCH,
        max_per_gpu=MAX_PER_GPU,
        seed=1,
        epochs=chosen.epochs,
        virtual_workers=4,
        checkpoint=chosen.checkpoint,
    ) as run:
        for epoch in run.epochs():
            for inputs, targets in run:
                run.backward(nn.functional.cross_entropy(model(inputs), targets))
            if run.is_main:
                found = accuracy(model, images[:TESTED], classes[:TESTED])
                print(
                    f"epoch {epoch}, {run.size} workers: loss {run.loss:.4f}, accuracy {found:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
