"""Train the reader of instructions on sentences of the grammar.

    python -m lab.wordings.train [--sentences N] [--seed N]      -> src/genius/bundled/instructions/reader.safetensors

Sentences are sequences of word classes; words of open classes are now and then replaced by content, as an unknown word is.
"""

from __future__ import annotations

import argparse
import random
from itertools import cycle, islice

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from torch import Tensor, nn

from genius.instructions import CLASSES, LONGEST, MODEL, SPAN
from lab.wordings.grammar import DIRECTIONS, QUERIES, TARGETS, sentence

SOFT = ("find", "fit", "change", "adjective", "filler", "show", "aux", "given", "more", "same", "item", "tell")
WIDTH, HIDDEN = 16, 32
UNKNOWN = 0.25  # of the sentences have an unknown word
MISREAD = 0.03  # of the sentences have a word in a wrong class
BATCH = 512
RATE = 4e-3


class Reader(nn.Module):
    """Two convolutions over word classes, their maximum and mean, and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CLASSES) + 1, WIDTH, padding_idx=0)
        self.first = nn.Linear(SPAN * WIDTH, HIDDEN)
        self.query = nn.Embedding(3, HIDDEN)
        self.second = nn.Linear(SPAN * HIDDEN, HIDDEN)
        self.hidden = nn.Linear(2 * HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, len(TARGETS))

    def forward(self, classes: Tensor, query: Tensor) -> Tensor:
        """(B, L) classes, 0 beyond the end, and (B,) query modalities -> (B, 4) logits."""
        real = (classes > 0)[..., None]
        x = torch.relu(self.first(_windows(self.embedding(classes))) + self.query(query)[:, None]) * real
        x = torch.relu(self.second(_windows(x))) * real
        pooled = torch.cat([x.amax(1), x.sum(1) / real.sum(1).clamp(min=1)], 1)
        logits: Tensor = self.out(torch.relu(self.hidden(F.dropout(pooled, 0.1, self.training))))
        return logits

    def arrays(self) -> dict[str, np.ndarray]:
        """As `genius.instructions` reads them."""
        return {name.replace(".", "_"): value.numpy().astype(np.float16) for name, value in self.state_dict().items()}


def _windows(x: Tensor) -> Tensor:
    """(B, L, D) -> (B, L, SPAN * D): each place with its neighbours."""
    padded = F.pad(x, (0, 0, SPAN // 2, SPAN // 2))
    return torch.cat([padded[:, at : at + x.shape[1]] for at in range(SPAN)], 2)


def sentences(count: int, rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """Classes, query modalities and targets, the same number of each direction."""
    ids = {name: at + 1 for at, name in enumerate(CLASSES)}
    rows = np.zeros((count, LONGEST), np.int64)
    queries, targets = [], []
    for row, (query, target) in zip(rows, islice(cycle(DIRECTIONS), count), strict=True):
        words = sentence(query, target, rng)
        if rng.random() < UNKNOWN:
            open_places = [at for at, word in enumerate(words) if word in SOFT]
            if open_places:
                words[rng.choice(open_places)] = "content"
        if rng.random() < MISREAD and words:
            words[rng.randrange(len(words))] = rng.choice(SOFT)
        found = [ids[word] for word in words[:LONGEST]]
        row[: len(found)] = found
        queries.append(QUERIES.index(query))
        targets.append(TARGETS.index(target))
    return torch.from_numpy(rows), torch.tensor(queries), torch.tensor(targets)


def train(count: int, seed: int) -> Reader:
    """The reader after one pass over so many sentences."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = random.Random(seed)
    reader = Reader()
    steps = count // BATCH
    optimizer = torch.optim.AdamW(reader.parameters(), RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for step in range(steps):
        classes, query, target = sentences(BATCH, rng)
        loss = F.cross_entropy(reader(classes, query), target, label_smoothing=0.03)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(step, round(loss.item(), 4), flush=True)
    classes, query, target = sentences(6000, random.Random(seed + 1))
    found = reader.eval()(classes, query).argmax(1)
    print("of new sentences of the grammar right:", round((found == target).float().mean().item(), 4))
    return reader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=400_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    save_file(train(args.sentences, args.seed).arrays(), MODEL)


if __name__ == "__main__":
    main()
