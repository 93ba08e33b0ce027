"""How does a loss whose proxies are spread over ranks become one state, and back?

A saved state is whole: it says nothing of the ranks that wrote it, so any number of ranks can load
it, sharded or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainables.spread import Spread
from trainables.world import World, share


class Shards:
    """The sharded and the replicated part of a loss and of its optimiser state.

    Args:
        loss: The loss.
        optimizer: Holds its parameters, among others.
        rows: Rows over all ranks of each sharded parameter, by name; empty without sharding.
        world: The ranks.
    """

    def __init__(
        self, loss: nn.Module, optimizer: Optimizer, rows: Mapping[str, int], world: World
    ) -> None:
        self._loss, self._optimizer, self._rows, self._world = loss, optimizer, rows, world

    def replicated_state(self) -> list[Tensor]:
        """What every rank holds a copy of."""
        return [t for name, t in self._loss.state_dict().items() if name not in self._rows]

    def replicated_gradients(self) -> list[Tensor]:
        """Gradients that every rank computes for itself."""
        named = self._loss.named_parameters()
        return [p.grad for name, p in named if name not in self._rows and p.grad is not None]

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """State of loss and optimiser, whole but for what is spread over ranks."""
        loss = self._loss.state_dict()
        optimizer = self._optimizer.state_dict()
        for name, total in self._rows.items():
            loss[name] = Spread(loss[name], total, self._world)
        for index, total in self._sharded_indices():
            state = dict(optimizer["state"].get(index, {}))
            for key, value in state.items():
                if isinstance(value, Tensor) and value.dim() > 0:
                    state[key] = Spread(value, total, self._world)
            if state:
                optimizer["state"][index] = state
        return loss, optimizer

    def load(self, loss: Mapping[str, Any], optimizer: Mapping[str, Any]) -> None:
        """Take this rank's rows of a whole state.

        Moments go by a parameter's number. Groups and their rates are the trial's settings, not
        part of the state: an older one may have had its parameters in other groups.
        """
        own = {k: v[self._own(self._rows[k])] if k in self._rows else v for k, v in loss.items()}
        self._loss.load_state_dict(own)
        rows = dict(self._sharded_indices())
        states = {
            index: {key: self._kept(value, rows.get(index)) for key, value in state.items()}
            for index, state in optimizer["state"].items()
        }
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": states, "param_groups": groups})

    def _kept(self, value: Any, total: int | None) -> Any:
        """A copy: the loaded state may be mapped from a file that is replaced later."""
        if not isinstance(value, Tensor):
            return value
        return (value if total is None or value.dim() == 0 else value[self._own(total)]).clone()

    def _own(self, total: int) -> slice:
        return share(total, self._world.rank, self._world.size)

    def _sharded_indices(self) -> Iterator[tuple[int, int]]:
        """Sharded parameters by their number in the optimiser, and their rows over all ranks."""
        rows = {id(p): self._rows[n] for n, p in self._loss.named_parameters() if n in self._rows}
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        for index, parameter in enumerate(parameters):
            if id(parameter) in rows:
                yield index, rows[id(parameter)]
