"""State of a loss and its optimiser whose proxies are sharded over ranks.

A saved state is complete and independent of the ranks that wrote it, so any number of ranks can
load it, sharded or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainables.distributed.world import World, rank_slice
from trainables.training.sharded_saving import ShardedTensor


class ShardedState:
    """The sharded and the replicated part of a loss and of its optimiser state.

    Args:
        loss: The loss.
        optimizer: The optimiser of its parameters, among others.
        rows: Number of rows of each sharded parameter over all ranks, by name; empty without
            sharding.
        world: The ranks.
    """

    def __init__(
        self, loss: nn.Module, optimizer: Optimizer, rows: Mapping[str, int], world: World
    ) -> None:
        self._loss, self._optimizer, self._rows, self._world = loss, optimizer, rows, world

    def replicated_state(self) -> list[Tensor]:
        """Return the tensors of the loss that every rank has a copy of."""
        return [t for name, t in self._loss.state_dict().items() if name not in self._rows]

    def replicated_gradients(self) -> list[Tensor]:
        """Return the gradients of replicated parameters, which every rank computes itself."""
        named = self._loss.named_parameters()
        return [p.grad for name, p in named if name not in self._rows and p.grad is not None]

    def collect_state_dicts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states of loss and optimiser, with a `ShardedTensor` for each shard."""
        loss = self._loss.state_dict()
        optimizer = self._optimizer.state_dict()
        for name, total in self._rows.items():
            loss[name] = ShardedTensor(loss[name], total, self._world)
        for index, total in self._sharded_indices():
            state = dict(optimizer["state"].get(index, {}))
            for key, value in state.items():
                if isinstance(value, Tensor) and value.dim() > 0:
                    state[key] = ShardedTensor(value, total, self._world)
            if state:
                optimizer["state"][index] = state
        return loss, optimizer

    def load_state_dicts(self, loss: Mapping[str, Any], optimizer: Mapping[str, Any]) -> None:
        """Load this rank's rows of a complete state.

        Moments are assigned by the number of their parameter. Groups and learning rates come from
        the trial's settings and not from the state, because an older state may have its parameters
        in other groups.
        """
        own = {
            k: v[self._own_slice(self._rows[k])] if k in self._rows else v for k, v in loss.items()
        }
        self._loss.load_state_dict(own)
        rows = dict(self._sharded_indices())
        states = {
            index: {
                key: self._copy_own_rows(value, rows.get(index)) for key, value in state.items()
            }
            for index, state in optimizer["state"].items()
        }
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": states, "param_groups": groups})

    def _copy_own_rows(self, value: Any, total: int | None) -> Any:
        """Copy, because the loaded state may be mapped from a file that is replaced later."""
        if not isinstance(value, Tensor):
            return value
        return (
            value if total is None or value.dim() == 0 else value[self._own_slice(total)]
        ).clone()

    def _own_slice(self, total: int) -> slice:
        return rank_slice(total, self._world.rank, self._world.size)

    def _sharded_indices(self) -> Iterator[tuple[int, int]]:
        """Yield the number of each sharded parameter in the optimiser and its total rows."""
        rows = {id(p): self._rows[n] for n, p in self._loss.named_parameters() if n in self._rows}
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        for index, parameter in enumerate(parameters):
            if id(parameter) in rows:
                yield index, rows[id(parameter)]
