"""Two images through one network: are they of one class? With a scheduler and a test set."""

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, count):
        self.images = torch.rand(count, 1, 28, 28)
        self.classes = torch.arange(count) % 10

    def __len__(self):
        return len(self.images)

    def __getitem__(self, at):
        other = (at + 10) % len(self) if at % 2 else (at + 1) % len(self)
        return self.images[at], self.images[other], self.classes[at] == self.classes[other]


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Linear(2 * 64 * 14 * 14, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid()
        )

    def forward(self, one, other):
        return self.head(torch.cat((self.body(one), self.body(other)), 1)).squeeze(1)


def main():
    use_cuda = torch.cuda.is_available()
    torch.manual_seed(1)
    device = torch.device("cuda" if use_cuda else "cpu")
    more = {"num_workers": 1, "pin_memory": True} if use_cuda else {}
    train = DataLoader(Pairs(512), batch_size=64, shuffle=True, **more)
    test = DataLoader(Pairs(128), batch_size=128, **more)
    model = Siamese().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(2):
        model.train()
        for one, other, same in train:
            one, other, same = one.to(device), other.to(device), same.to(device)
            optimizer.zero_grad()
            loss = F.binary_cross_entropy(model(one, other), same.float())
            loss.backward()
            optimizer.step()
        model.eval()
        right = 0
        with torch.no_grad():
            for one, other, same in test:
                found = model(one.to(device), other.to(device)) > 0.5
                right += found.eq(same.to(device)).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, {right} of {len(test.dataset)} right")
        scheduler.step()


if __name__ == "__main__":
    main()
