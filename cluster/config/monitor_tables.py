"""The table `[monitor.law]`: how loss falls with parameters and tokens.

The comment above a key is its documentation.
"""

from __future__ import annotations

from cluster.config.table import Table
from cluster.config.values import Amount, Positive


class LossLaw(Table):
    """The law of `monitor.expected = "law"`: loss = e + a / N^alpha + b / D^beta.

    N is the number of parameters and D the number of tokens. The default is the law that
    arXiv:2203.15556 has fitted to text of 32,000 tokens. Write all five numbers of a law of yours.
    """

    e: Amount = 1.69
    """The loss that no model gets below, in nats per token."""
    a: Amount = 406.4
    """The factor of the part that falls with parameters."""
    alpha: Positive = 0.34
    """The power of the number of parameters."""
    b: Amount = 410.7
    """The factor of the part that falls with tokens."""
    beta: Positive = 0.28
    """The power of the number of tokens."""

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss after this many tokens, in nats per token; both numbers are above 0."""
        return self.e + self.a / parameters**self.alpha + self.b / tokens**self.beta
