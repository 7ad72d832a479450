"""Train a PyTorch model with a PyTorch training loop of your own, on two islands of this machine.

    pip install -c constraints.txt ".[torch]"  # in a clone of Archipelago
    python -m archipelago.examples.loop_torch

It takes about a minute on two cores. `train` is the loop. The comments mark the lines that make a
single-machine loop run on islands.
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, pad

import archipelago as ap

BYTES, CONTEXT, WIDTH = 256, 8, 64
CONFIG = {
    "run": {"steps": 60},
    "data": {"source": "python-stdlib", "window": 64},
    "sync": {"every": 8, "fragments": 4},
    "islands": [{"count": 2, "batch_size": 8, "resources": {"CPU": 0.5}}],
}


def task(data: ap.DataSpec) -> ap.Task:
    """Return the task: the model, its evaluation, and the loop that trains it."""
    return ap.loop_task(train, init, evaluate, data, vocabulary=BYTES, embedding=["embedding"])


def train() -> None:
    """Train on one island."""
    model = Model()
    params = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    island = ap.join()  # 1: join the run
    island.load(params)  # 2: begin with its parameters
    while island.running:  # 3: until the run ends
        batch = torch.from_numpy(island.batch).long()  # 4: the data of this island
        optimizer.param_groups[0]["lr"] = 6e-3 * min(1.0, (island.clock + 1) / 20)
        optimizer.zero_grad()
        value = loss(model(batch[:, :-1]), batch)
        value.backward()
        optimizer.step()
        island.step(params, batch[:, 1:].numel(), loss=value)  # 5: exchange what is due


class Model(nn.Module):
    """A model that predicts each byte from the CONTEXT bytes before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, WIDTH)
        self.hidden = nn.Linear(CONTEXT * WIDTH, 4 * WIDTH)
        self.output = nn.Linear(4 * WIDTH, BYTES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, window, BYTES] for int64 inputs [batch, window]."""
        embedded = pad(self.embedding(inputs), (0, 0, CONTEXT - 1, 0))
        seen = [embedded[:, i : i + inputs.shape[1]] for i in range(CONTEXT)]
        return self.output(gelu(self.hidden(torch.cat(seen, dim=-1))))


def init(seed: int) -> dict[str, torch.Tensor]:
    """Return the initial parameters."""
    torch.manual_seed(seed)
    return {name: leaf.detach() for name, leaf in Model().named_parameters()}


def evaluate(params: dict[str, torch.Tensor], batch: np.ndarray) -> float:
    """Return the mean loss of a held-out batch, int32 [batch, window + 1]."""
    tokens = torch.from_numpy(batch).long()
    with torch.no_grad():
        return loss(torch.func.functional_call(Model(), params, (tokens[:, :-1],)), tokens).item()


def loss(logits: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of the batch in nats per byte."""
    return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


if __name__ == "__main__":
    result = ap.run(CONFIG, task=task)
    before, after = result.summary["initial_heldout_loss"], result.heldout_loss
    print(f"held-out loss {before:.3f} -> {after:.3f}, model in {result.run_dir}")
