"""Classes of the nodes of a graph: two graph convolutions over an adjacency matrix."""

import torch
import torch.nn.functional as F
from torch import nn, optim

NODES, EDGES, FEATURES, HIDDEN, CLASSES = 2_708, 10_556, 1_433, 64, 7


class Convolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))
        nn.init.xavier_uniform_(self.kernel)

    def forward(self, features, graph):
        return torch.mm(graph, torch.mm(features, self.kernel))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Convolution(FEATURES, HIDDEN)
        self.second = Convolution(HIDDEN, CLASSES)

    def forward(self, features, graph):
        found = F.dropout(F.relu(self.first(features, graph)), 0.5, self.training)
        return F.log_softmax(self.second(found, graph), dim=1)


def main():
    torch.manual_seed(42)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ends = torch.randint(NODES, (2, EDGES))
    graph = torch.zeros(NODES, NODES)
    graph[ends[0], ends[1]] = 1
    graph.fill_diagonal_(1)
    scale = graph.sum(1).pow(-0.5)
    graph = graph.mul_(scale[:, None]).mul_(scale).to(device)
    features, wanted = torch.rand(NODES, FEATURES).to(device), torch.randint(CLASSES, (NODES,))
    wanted = wanted.to(device)
    order = torch.randperm(NODES, device=device)
    test, held, train = order[:1_000], order[1_000:1_500], order[1_500:]
    model = Network().to(device)
    optimizer = optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(10):
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(model(features, graph)[train], wanted[train])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            found = model(features, graph).argmax(1)
        right = (found[held] == wanted[held]).float().mean().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, {right:.3f} right")
    print(f"{(found[test] == wanted[test]).float().mean().item():.3f} of the test right")


if __name__ == "__main__":
    main()
