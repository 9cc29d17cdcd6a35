"""A word language model: an LSTM with tied weights, truncated backpropagation, clipping."""

import torch
from torch import nn

VOCABULARY, WIDTH, LAYERS, BATCH, LENGTH, EPOCHS = 8_000, 256, 2, 20, 35, 2


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(VOCABULARY, WIDTH)
        self.memory = nn.LSTM(WIDTH, WIDTH, LAYERS, dropout=0.2)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)
        self.decoder.weight = self.encoder.weight

    def forward(self, words, state):
        found, state = self.memory(self.encoder(words), state)
        return self.decoder(found), state


def pieces(text):
    """Words and the words that follow them, LENGTH at a time."""
    for first in range(0, len(text) - 1, LENGTH):
        size = min(LENGTH, len(text) - 1 - first)
        yield text[first : first + size], text[first + 1 : first + 1 + size].reshape(-1)


def begin(device):
    shape = LAYERS, BATCH, WIDTH
    return torch.zeros(shape, device=device), torch.zeros(shape, device=device)


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, held = (
        torch.randint(VOCABULARY, (length, BATCH)).to(device) for length in (4 * LENGTH + 1, 71)
    )
    model, rate, best = LanguageModel().to(device), 20.0, None
    score = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        model.train()
        state, total = begin(device), 0.0
        for words, wanted in pieces(train):
            model.zero_grad()
            state = tuple(part.detach() for part in state)
            found, state = model(words, state)
            loss = score(found.view(-1, VOCABULARY), wanted)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(weight.grad, alpha=-rate)
            total += loss.item()
        model.eval()
        with torch.no_grad():
            state, losses = begin(device), []
            for words, wanted in pieces(held):
                found, state = model(words, state)
                losses.append(score(found.view(-1, VOCABULARY), wanted).item())
        print(f"epoch {epoch}: loss {total:.2f}, held out {sum(losses) / len(losses):.2f}")
        if best is None or losses[0] < best:
            best = losses[0]
        else:
            rate /= 4


if __name__ == "__main__":
    main()
