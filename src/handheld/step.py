"""A captured step: one state, and several graphs that use it. Needs no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from handheld.callers import warn_user
from handheld.errors import HandheldError, ValueRead
from handheld.graph.graph import Graph, Slot
from handheld.optimizer_state import copy_state
from handheld.packing import Packing, from_meta, scales_of, unpacked_state, words_of
from handheld.units import count

if TYPE_CHECKING:
    import torch

    from handheld.device import DeviceCaps
    from handheld.live_optimizer import LiveOptimizer, TorchOptimizer
    from handheld.plan.plan import Plan
    from handheld.run.trainer import Trainer


class Code(Protocol):
    """The code that a step was captured from."""

    def add(self, step: Step, kind: str, size: int) -> str:
        """Adds the graph of a kind (train, evaluate, predict) for another batch size to the step."""
        ...

    def add_part(self, step: Step, size: int) -> str:
        """Adds the training graphs for a part of a batch to the step."""
        ...

    def kind_of_loss(self) -> str:
        """How the losses of parts make the loss of a batch: "mean" or "sum"."""
        ...

    def batch_norms(self) -> int:
        """The number of batch norms whose results depend on the other samples of a batch."""
        ...


class Step:
    """A captured training step: the result of `handheld.capture`, and the content of a step file."""

    def __init__(
        self,
        slots: Mapping[str, Slot],
        values: Mapping[str, np.ndarray],
        graphs: Mapping[str, Graph],
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.slots = dict(slots)
        self.values = dict(values)
        self.graphs = dict(graphs)
        self.meta = dict(meta or {})
        #: The graphs before fusion, if they were captured in this process. Reports use them to name the op that the
        #: model called instead of a fused kernel.
        self.unfused: Step | None = None
        #: The code of the step, if it was captured in this process: it can add graphs for other batch sizes.
        self.code: Code | None = None
        #: Graphs that the code added for other batch sizes. Step files do not hold them.
        self.added: dict[str, Graph] = {}
        #: The optimizers of this process that the step was captured with, by the name of their slots. A trainer follows
        #: their learning rates. A step file does not hold them.
        self.optimizers: dict[str, LiveOptimizer] = {}
        self._trainer: Trainer | None = None

    def __repr__(self) -> str:
        count = sum(s.role == "parameter" for s in self.slots.values())
        return f"<Step {self.meta.get('name', '')}: {', '.join(self.graphs)}; {count} parameters>"

    def graph(self, name: str) -> Graph:
        """A graph of the step, or one that was added for another batch size."""
        return self.graphs[name] if name in self.graphs else self.added[name]

    def plan(
        self,
        device: str = "opencl",
        *,
        caps: DeviceCaps | None = None,
        graphs: Sequence[str] | None = None,
        memory_limit_bytes: int | None = None,
        isolate: bool = False,
        tuning: bool | str | Path = True,
        precision: str = "float32",
        growth_steps: int = 2000,
        recompute: bool = True,
        micro_batches: int | None = None,
        spill: bool = False,
        stream: bool = False,
        spill_to: str | Path | None = None,
        state_bits: int = 32,
    ) -> Plan:
        """Decide everything about running this step on a device, which is present or described by `caps`.

        - `graphs` limits the plan to some of the step's graphs.
        - `memory_limit_bytes`: the plan needs no more than this, or OutOfMemory names the smallest limit. To fit,
          values of the forward pass are computed again in the backward pass (docs/limits.md), as few as possible.
        - `recompute`: whether that is allowed, for this limit and for the memory of the device. Without it, the plan
          stays as it is, except for what `spill` and a number of `micro_batches` ask for.
        - `micro_batches=k` runs the training step in k parts of a batch whose gradients make one update. With None, the
          plan does so if that meets the limit better than computing values again, and the update stays the same; a
          batch stays whole with 1.
        - `spill`: to fit, values may also be moved out of the device and back: to the memory of the host, or to a file
          on devices that share that memory. The plan does what is predicted to be faster.
        - `stream`: parameters that no graph changes are kept there too, and copied to the device when they are read.
        - `spill_to`: the folder for that file; on every device there is one then.
        - `state_bits`: 16 or 8 stores momenta and averages of squares of the optimizer in so many bits, with a scale
          per block of values. They are computed in float32, with what is stored rounded after each step.
        - `isolate` gives every tensor its own memory, for checking kernels.
        - `tuning`: whether to use measured variants where a tuning record has some, or the path of one record.
        - `precision`: "half" stores values between nodes in 16 bits and scales the loss. The scale doubles after
          `growth_steps` steps without an overflow. "half-compute" also multiplies in 16 bits (needs cl_khr_fp16).
        """
        from handheld.limits.means import plan_fitting

        return plan_fitting(
            self,
            device,
            caps=caps,
            graphs=graphs,
            isolate=isolate,
            tuning=tuning,
            memory_limit_bytes=memory_limit_bytes,
            precision=precision,
            growth_steps=growth_steps,
            recompute=recompute,
            micro_batches=micro_batches,
            spill=spill,
            stream=stream,
            spill_to=spill_to,
            state_bits=state_bits,
        )

    def save(self, path: str | Path) -> Path:
        """Write a step file atomically. It includes what a running trainer has learned."""
        from handheld.package import save

        self._sync()
        return save(self, Path(path))

    def state(self) -> dict[str, np.ndarray]:
        """All values by their PyTorch names, as the device holds them. A tied value appears under each of its names. A
        weight W that `handheld.quantise` packed is W.words and W.scales; `state_dict` has it as W."""
        self._sync()
        return named_state(self.slots, self.values)

    def model_state(self) -> dict[str, np.ndarray]:
        """Like `state`, with packed weights as floats under their PyTorch names."""
        return unpacked_state(self.state(), self.packings())

    def packings(self) -> dict[str, Packing]:
        """The weights that `handheld.quantise` packed, by the names of their former slots."""
        return from_meta(self.meta)

    def model_names(self) -> dict[str, str]:
        """The names in the model's PyTorch state dict, each with its slot: parameters, and the buffers that PyTorch
        saves. A tied value has several names."""
        transient, packed = set(names_in(self.meta, "transient")), self.packings()
        codes = {part for slot in packed for part in (words_of(slot), scales_of(slot))}
        model = [s for s in self.slots.values() if s.role in ("parameter", "buffer") and s.name not in codes]
        names = {name: slot.name for slot in model for name in slot.names if name not in transient}
        return names | {name: slot for slot, packing in packed.items() for name in packing.names}

    def parameter_count(self) -> int:
        """The number of values in all parameters, trained or not."""
        packed = self.packings()
        codes = {part for slot in packed for part in (words_of(slot), scales_of(slot))}
        own = [s for s in self.slots.values() if s.role == "parameter" and s.name not in codes]
        return sum(math.prod(s.shape) for s in own) + sum(packing.size for packing in packed.values())

    def trained_count(self) -> int:
        """The number of values in the parameters that a graph of the step changes."""
        written = {write.slot for graph in self.graphs.values() for write in graph.writes}
        return sum(math.prod(s.shape) for s in self.slots.values() if s.role == "parameter" and s.name in written)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers as PyTorch tensors, for `model.load_state_dict`. Needs PyTorch."""
        import torch

        state, names = self.model_state(), self.model_names()
        tensors = {slot: torch.from_numpy(np.array(state[name])) for name, slot in names.items()}
        return {name: tensors[slot] for name, slot in names.items()}

    def copy(self) -> Step:
        """A step with the same graphs and a copy of the state, for example to train twice from here."""
        self._sync()
        values = {name: value.copy() for name, value in self.values.items()}
        other = Step(self.slots, values, self.graphs, self.meta)
        other.unfused, other.code, other.added = self.unfused, self.code, dict(self.added)
        other.optimizers = {name: live.copy() for name, live in self.optimizers.items()}
        return other

    def _sync(self) -> None:
        if self._trainer is not None and not self._trainer.closed:
            self._trainer.sync()

    def copy_to(self, model: Any, optimizer: TorchOptimizer | None = None) -> None:
        """Copy the trained parameters and buffers back into the PyTorch module, or into all modules of the dictionary
        that was captured. With `optimizer`, an optimizer of torch.optim gets its learning rates and state too."""
        state = self.model_state()
        modules = {f"{name}.": part for name, part in model.items()} if isinstance(model, dict) else {"": model}
        own: dict[str, Any] = {}
        for prefix, part in modules.items():
            part = uncompiled(part)
            if not hasattr(part, "named_parameters"):
                raise HandheldError(
                    f"copy_to takes the module that was captured, or a dictionary of them, not a {type(part).__name__}"
                )
            for name, tensor in (
                *part.named_parameters(remove_duplicate=False),
                *part.named_buffers(remove_duplicate=False),
            ):
                own[prefix + name] = tensor
        missing = [name for name in own if name not in state]
        if missing:
            raise HandheldError(
                f"the step has no values for {', '.join(missing[:5])}: is this the module that was captured?"
            )
        other = [name for name, tensor in own.items() if tuple(tensor.shape) != state[name].shape]
        if other:
            raise HandheldError(
                f"{other[0]} has shape {tuple(own[other[0]].shape)} in the module "
                f"and {state[other[0]].shape} in the step: is this the module that "
                "was captured?"
            )
        for name, tensor in own.items():
            tensor.data.copy_(tensor.data.new_tensor(state[name]))
        if optimizer is not None:
            slots = {name: slot.name for slot in self.slots.values() for name in slot.names} | self.model_names()
            owners = {id(tensor): slots[name] for name, tensor in own.items()}
            captured = any(known.optimizer is optimizer for known in self.optimizers.values())
            copy_state(optimizer, self._prefix(optimizer), owners, state, captured)

    def _prefix(self, optimizer: TorchOptimizer) -> str:
        """What the names of the optimizer's slots begin with."""
        live = [name for name, known in self.optimizers.items() if known.optimizer is optimizer]
        named = live or [name.removesuffix(".lr.0") for name in self.slots if name.endswith(".lr.0")]
        if len(named) != 1:
            raise HandheldError(
                f"the step has {len(named)} optimizers, and this one is not among those it was captured with. "
                "Try: copy_to(model), and step.state() for the values of its optimizers"
            )
        return named[0]

    def no_gradient(self) -> list[str]:
        """Parameters of the optimizer that no gradient reaches."""
        names: list[str] = []
        for graph in self.graphs.values():
            names += [n for n in graph.notes.get("no_gradient", ()) if n not in names]
        return names

    def frozen(self) -> dict[str, list[str]]:
        """Values that Python code read during capture. They are constants now: later steps do not read them again.
        Maps the line of code and what it read to the graphs that contain it."""
        graphs: dict[str, list[str]] = {}
        for graph in self.graphs.values():
            for line in graph.notes.get("frozen", ()):
                graphs.setdefault(line, []).append(graph.name)
        return graphs


def uncompiled(module: Any) -> Any:
    """The user's own module inside the wrapper that `torch.compile` returns; any other module as it is."""
    return getattr(module, "_orig_mod", module)


def names_in(meta: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The names under a key of a step's meta. A file may hold anything there, so other values are ignored."""
    names = meta.get(key, ())
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, (tuple, list)) else ()


def frozen_text(step: Step) -> str:
    """The result of `Step.frozen` as a message."""
    frozen = step.frozen()
    shown = "; ".join(list(frozen)[:3]) + (f"; and {len(frozen) - 3} more" if len(frozen) > 3 else "")
    graphs = ", ".join(dict.fromkeys(name for names in frozen.values() for name in names))
    return (
        f"Python code read values while the step was captured. Its decisions are now "
        f"frozen in {graphs}: {shown}. Every step takes the same path, whatever its "
        "batch. Try: torch.where instead of if"
    )


def check_frozen(step: Step, accept: str) -> None:
    """Raise ValueRead if there is a frozen value. `accept` tells the user how to continue anyway."""
    if step.frozen():
        raise ValueRead(f"{frozen_text(step)}. To train with the frozen values: {accept}")


def warn(step: Step, frozen: bool = True) -> None:
    """Warn about properties of the capture that the user must know."""
    unreached = step.no_gradient()
    if unreached:
        shown = ", ".join(unreached[:8]) + (" …" if len(unreached) > 8 else "")
        these = "its value" if len(unreached) == 1 else "their values"
        warn_user(f"no gradient reaches {count(len(unreached), 'parameter')}; training keeps {these}: {shown}")
    if frozen and step.frozen():
        warn_user(frozen_text(step))
    double = sum(s.role == "parameter" and s.torch_dtype == "float64" for s in step.slots.values())
    if double:
        warn_user(
            f"float32 replaces the float64 of {count(double, 'parameter')}: the results are those of model.float()"
        )
    inputs = {i.name for g in step.graphs.values() for i in g.inputs if i.torch_dtype == "float64"}
    if inputs and not double:
        warn_user(
            f"input {', '.join(sorted(inputs))} of the batch is float64 in PyTorch and float32 here. "
            "Try: .float(), to compute the same in PyTorch"
        )


def named_state(slots: Mapping[str, Slot], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """PyTorch name -> array in PyTorch's type. Constants are not part of the state."""
    state = {}
    for slot in slots.values():
        if slot.role != "constant":
            for name in slot.names:
                state[name] = values[slot.name].astype(slot.torch_dtype).reshape(slot.shape)
    return state
