"""Turns a PyTorch model, a loss and an optimizer into a Step.

The basic unit is a closure `fn(batch)` that returns `loss` or `(loss, outputs)`. It is recorded together with
the modules it uses. `handheld.capture(model, loss, optimizer, batch)` in entry.py builds such a closure for the
usual case. Several closures can be recorded over one state, for example the two updates of a GAN, an evaluation
pass, or the copy of a target network.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from handheld.callers import warn_user
from handheld.errors import CaptureError, ValueRead
from handheld.frontend import arguments
from handheld.frontend.accumulating import accumulate as accumulate_batches
from handheld.frontend.accumulating import accumulate_part
from handheld.frontend.attributes import Attributes
from handheld.frontend.clipping import clip_norm, clip_value
from handheld.frontend.closures import (
    Closure,
    bind_inputs,
    leaf_names,
    loss_and_outputs,
    named_outputs,
    no_own_update,
    read_output,
    torch_name,
)
from handheld.frontend.experts import dense_experts
from handheld.frontend.heard import Heard
from handheld.frontend.idioms import check_trainable, fresh_gradients, gradients, in_float32
from handheld.frontend.optimizers import Optimizer
from handheld.frontend.origin import origin
from handheld.frontend.packed import packed_sequences
from handheld.frontend.reading import Frozen, check_ranges, watched
from handheld.frontend.record import Recorder
from handheld.frontend.recurrent import single_op_recurrence
from handheld.frontend.replaced import replaced_functions
from handheld.frontend.sizes import Code, Recipe
from handheld.frontend.state import StateBuilder
from handheld.frontend.tables import LOWERINGS  # noqa: F401 (filled by this import)
from handheld.frontend.tested import warn_untested
from handheld.graph.check import check
from handheld.graph.graph import Graph, GraphInput, GraphOutput
from handheld.live_optimizer import LiveOptimizer
from handheld.module_paths import follow_modules
from handheld.passes.pipeline import optimize
from handheld.passes.scale import GOOD, SCALE, SKIPPED, START
from handheld.progress import report
from handheld.step import Step, check_frozen, uncompiled, warn
from handheld.user_errors import note_place


@dataclass(frozen=True)
class _Update:
    """How a training step changes the parameters."""

    optimizer: Optimizer
    clip_norm: float | None
    clip_value: float | None
    #: The number of batches whose mean gradient one update uses.
    accumulate: int
    #: Whether this batch is the last of them, so that the update follows.
    last: bool = True
    #: Whether the batch is a part of a batch, whose gradients count by its share.
    part: bool = False


class Capture:
    """Records closures over one state. `step()` returns the recorded graphs as a Step."""

    def __init__(self, modules: nn.Module | Mapping[str, nn.Module], seed: int = 0) -> None:
        arguments.check_modules(modules)
        arguments.check_seed(seed)
        warn_untested()
        self.modules = {"": modules} if isinstance(modules, nn.Module) else dict(modules)
        self.modules = {name: uncompiled(module) for name, module in self.modules.items()}
        self.state = StateBuilder(self.modules)
        self.state.add_value("handheld.seed", np.array(seed, np.int32), "control", "int64")
        self.state.add_value("handheld.step", np.array(0, np.int32), "control", "int64")
        # A plan in half precision needs a gradient scale, and counts the good and the skipped steps.
        self.state.add_value(SCALE, np.array(START, np.float32), "control")
        for name in (GOOD, SKIPPED):
            self.state.add_value(name, np.array(0, np.int32), "control", "int64")
        self.graphs: dict[str, Graph] = {}
        #: For each graph, the values that Python code read while the graph was recorded.
        self.frozen: dict[str, tuple[Frozen, ...]] = {}
        self._unfused: dict[str, Graph] = {}
        self._optimizers: dict[int, Optimizer] = {}
        #: How the first graph of each kind was recorded. `train` and `train@18` are of one kind.
        self.recipes: dict[str, Recipe] = {}
        #: Why there is no prediction, or "".
        self.no_predict = ""
        self._live: dict[str, LiveOptimizer] = {}
        self._heard = Heard()

    def train(
        self,
        fn: Closure,
        optimizer: torch.optim.Optimizer,
        batch: object,
        name: str = "train",
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        part: bool = False,
    ) -> Capture:
        """Records a training step. With `accumulate=k`, one update uses the mean gradient of k batches.

        With `part`, the batch is a part of one, and an update uses the gradients of all parts (run/parts.py).
        """
        arguments.check_optimizer(optimizer)
        arguments.check_clipping(clip_norm, clip_value, accumulate)
        arguments.check_batch(batch, 1)
        options = {"clip_norm": clip_norm, "clip_value": clip_value, "accumulate": accumulate}

        def again(b: object, n: str, **more: Any) -> None:
            self.train(fn, optimizer, b, n, **{**options, **more})

        self._remember(name, again, batch, fn)
        owner = self._optimizer(optimizer, name)
        update = _Update(owner, clip_norm, clip_value, accumulate, part=part)
        if accumulate > 1 or part:
            self._record(f"{name}.accumulate", fn, batch, replace(update, last=False))
        self._record(name, fn, batch, update)
        return self

    def evaluate(self, fn: Closure, batch: object, name: str = "evaluate") -> Capture:
        """Records a forward pass in eval mode. It updates no parameter."""
        self._remember(name, lambda b, n: self.evaluate(fn, b, n), batch, fn)
        with self._eval_mode(), torch.no_grad():
            self._record(name, fn, batch, None)
        return self

    def copy(
        self,
        name: str,
        pairs: Mapping[nn.Module, nn.Module] | Sequence[tuple[nn.Module, nn.Module]],
        weight: float = 1.0,
    ) -> Capture:
        """Records a graph that copies parameters and buffers between modules: [(target, source), ...].

        With `weight` below 1, parameters move towards the source by that share, as in a moving average.
        """
        arguments.check_weight(weight)
        rec = Recorder(self.state, None)
        rec.phase, rec.torch_op = "update", "copy"
        writes: dict[str, int] = {}
        for target, source in pairs.items() if isinstance(pairs, Mapping) else pairs:
            originals = dict(source.named_parameters()) | dict(source.named_buffers())
            for key, tensor in (dict(target.named_parameters()) | dict(target.named_buffers())).items():
                arguments.check_copy(key, tensor, originals.get(key))
                slot = self.state.find(tensor)
                rec.path = [self.state.path_of(slot)]
                rec.slot_tensor(slot)
                view = rec.dense(rec.slot_tensor(self.state.find(originals[key])))
                if weight == 1 or not isinstance(tensor, nn.Parameter):
                    writes[slot] = rec.map(view.shape, [view], lambda a: a).tensor
                else:
                    old = rec.dense(rec.slot_tensor(slot))
                    writes[slot] = rec.map(view.shape, [old, view], lambda a, b: a + (b - a) * weight).tensor
        self._finish(name, rec, [], [], writes, {})
        return self

    def step(self, *, frozen: str = "warn", **meta: Any) -> Step:
        """Returns everything recorded so far as a Step. `frozen` (warn, error or accept) says what to do if
        Python code read values that can change from step to step."""
        arguments.check_frozen(frozen)
        used = {s for g in self.graphs.values() for s in g.slots}
        keep = {n: s for n, s in self.state.slots.items() if n in used or s.role in ("parameter", "buffer", "control")}
        values = {n: self.state.values[n].reshape(s.shape) for n, s in keep.items()}
        if self.no_predict:
            meta["no_predict"] = self.no_predict
        step = Step(keep, values, self.graphs, {**origin(self.modules, keep), **meta})
        rest = {n: v for n, v in self.state.values.items() if n not in keep or keep[n].role == "constant"}
        step.unfused = Step(self.state.slots, rest, self._unfused)
        step.code = Code(self)
        for name, live in self._live.items():
            live.end_capture()
            step.optimizers[name] = live.copy()
        if frozen == "error":
            check_frozen(step, "capture(..., frozen='accept')")
        warn(step, frozen == "warn")
        return step

    # ── recording one closure ─────────────────────────────────────────────────────────────────

    def _optimizer(self, optimizer: torch.optim.Optimizer, graph: str) -> Optimizer:
        if id(optimizer) not in self._optimizers:
            name = "optimizer" if not self._optimizers else f"optimizer_{graph}"
            self._optimizers[id(optimizer)] = Optimizer(optimizer, self.state, name)
            self._live[name] = LiveOptimizer(optimizer, name, self._optimizers[id(optimizer)].moving)
            still = [self.state.find(p) for g in optimizer.param_groups for p in g["params"] if not p.requires_grad]
            if still:
                shown = ", ".join(still[:8]) + (" …" if len(still) > 8 else "")
                warn_user(
                    "parameters of the optimizer that have requires_grad=False keep their values "
                    f"({len(still)}): {shown}"
                )
        return self._optimizers[id(optimizer)]

    def _record(self, name: str, fn: Closure, batch: object, update: _Update | None) -> None:
        report(f"capturing {name}")
        try:
            self._record_once(name, fn, batch, update, fake=True)
        except ValueRead:
            # The model reads values: run it once on real tensors and note which values are fixed by that.
            self._record_once(name, fn, batch, update, fake=False)
        except Exception as error:  # The user's code may raise anything. Its traceback ends inside PyTorch.
            note_place(error, batch)
            raise
        finally:
            self._heard.issue()

    def _record_once(self, name: str, fn: Closure, batch: object, update: _Update | None, fake: bool) -> None:
        """Runs the closure once under the recorder, on fake or real tensors, and keeps the graph as `name`."""
        mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
        rec = Recorder(self.state, mode)
        leaves, spec = pytree.tree_flatten(batch)
        with ExitStack() as stack:
            stack.enter_context(self._quiet())
            stack.enter_context(in_float32())
            stack.enter_context(fresh_gradients(p for m in self.modules.values() for p in m.parameters()))
            stack.enter_context(single_op_recurrence())
            stack.enter_context(packed_sequences(rec, dict(zip(leaf_names(batch), leaves, strict=True))))
            stack.enter_context(replaced_functions())
            stack.enter_context(dense_experts())
            attributes = Attributes(self.modules.values())
            stack.callback(attributes.restore)
            stack.enter_context(follow_modules(rec.path, self.state.paths))
            if mode is not None:
                stack.enter_context(mode)
            given, inputs = bind_inputs(rec, leaves, batch, mode)
            stack.enter_context(watched(rec))
            stack.enter_context(rec)
            rec.path.append("loss")
            with no_own_update():
                result = fn(pytree.tree_unflatten(given, spec))
            loss, outputs = loss_and_outputs(result, update is not None)
            notes: dict[str, object] = {}
            writes: dict[str, int] = {}
            if update is not None:
                writes = self._backward(rec, loss, update, notes)
            for old, new in attributes.new_buffers():
                torch.ops.aten.copy_.default(old, new)
            rec.path.pop()
            named = [GraphOutput("loss", read_output(rec, loss), "float32")] if loss is not None else []
            named += [GraphOutput(key, read_output(rec, t), torch_name(t)) for key, t in named_outputs(outputs)]
        if update is not None or any(n.op == "random" for node in rec.nodes for n in node.attrs.get("program", ())):
            rec.phase, rec.path, rec.torch_op = "update", ["handheld"], "step counter"
            done = rec.slot_view("handheld.step")
            writes["handheld.step"] = rec.map((), [done], lambda t: t + 1).tensor
        for slot, storage in rec.slot_storage.items():
            if slot not in writes and storage.tensor != rec.slots[slot]:
                if self.state.slots[slot].role == "constant":
                    raise CaptureError(
                        f"{name}: the model changes the tensor {slot}, which is neither a parameter nor a buffer. "
                        "Try: register it with register_buffer"
                    )
                if update is not None or self.state.slots[slot].role == "buffer":
                    writes[slot] = storage.tensor
        if rec.ranges:
            notes["ranges"] = tuple(map(tuple, rec.ranges.values()))
            check_ranges(rec.ranges.values(), dict(zip(leaf_names(batch), leaves, strict=True)))
        self.frozen[name] = tuple(rec.frozen)
        if rec.frozen:
            notes["frozen"] = tuple(dict.fromkeys(map(str, rec.frozen)))
        self._finish(name, rec, inputs, named, writes, notes)

    def _backward(self, rec: Recorder, loss: torch.Tensor, update: _Update, notes: dict[str, object]) -> dict[str, int]:
        """Records gradients, clipping and update. Returns the new tensor of each slot that the step writes."""
        parameters = [p for p, _ in update.optimizer.parameters]
        check_trainable(loss, parameters)
        # The gradient of the loss is a slot. It is 1 in float32; see passes/scale.py for half precision.
        seed = rec.stand_in_of(SCALE, torch.ones(())).reshape(loss.shape).to(loss.dtype)
        grads = gradients(loss, parameters, seed)
        if all(g is None for g in grads):
            raise CaptureError(
                "no gradient reaches any parameter of the optimizer. "
                "Try: give the optimizer the parameters of this model"
            )
        unreached = [self.state.find(p) for p, g in zip(parameters, grads, strict=True) if g is None]
        if unreached:
            notes["no_gradient"] = tuple(unreached)
        rec.phase, rec.torch_op = "update", "gradient"
        rec.path.append("optimizer")
        views = {id(p): rec.read(g) for p, g in zip(parameters, grads, strict=True) if g is not None}
        writes: dict[str, int] = {}
        if update.part:
            views, writes = accumulate_part(rec, self.state, parameters, views, update.last)
        elif update.accumulate > 1:
            notes["accumulate"] = update.accumulate
            views, writes = accumulate_batches(rec, self.state, parameters, views, update.accumulate, update.last)
        if update.last:
            if update.clip_norm is not None:
                views = clip_norm(rec, views, update.clip_norm)
            if update.clip_value is not None:
                views = clip_value(rec, views, update.clip_value)
            writes |= update.optimizer.emit(rec, views)
        rec.path.pop()
        return writes

    def _finish(
        self,
        name: str,
        rec: Recorder,
        inputs: list[GraphInput],
        outputs: list[GraphOutput],
        writes: dict[str, int],
        notes: dict[str, object],
    ) -> None:
        raw = check(rec.graph(name, inputs, outputs, writes, notes), self.state.slots)
        self._unfused[name], self.graphs[name] = raw, optimize(raw, self.state)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """While active, the random state is forked and seeded, PyTorch's warnings are kept, its fake-tensor logs are
        silent, and functions compiled with torch.compile run uncompiled."""
        fast_path = torch.backends.mha.get_fastpath_enabled()
        logger = logging.getLogger("torch._subclasses.fake_tensor")
        level = logger.level
        compiled = "torch._dynamo" in sys.modules  # Do not import it here: that takes seconds.
        eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        with torch.random.fork_rng(devices=[]), self._heard.listening(), eager:
            logger.setLevel(logging.CRITICAL)  # PyTorch logs errors that it also raises.
            torch.manual_seed(0)  # Keys of random ops are drawn from this seed, so every capture gets the same ones.
            # The fused inference path of a transformer layer is one opaque op that cannot be recorded.
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                yield
            finally:
                torch.backends.mha.set_fastpath_enabled(fast_path)
                logger.setLevel(level)

    @contextmanager
    def _modes(self, wanted: Mapping[nn.Module, bool]) -> Iterator[None]:
        """While active, each module is in training mode (True) or eval mode (False)."""
        before = {module: module.training for module in self._all_modules()}
        try:
            for module, training in wanted.items():
                module.training = training
            yield
        finally:
            for module, training in before.items():
                module.training = training

    def _eval_mode(self) -> AbstractContextManager[None]:
        return self._modes(dict.fromkeys(self._all_modules(), False))

    def _all_modules(self) -> list[nn.Module]:
        return [part for module in self.modules.values() for part in module.modules()]

    # ── other batch sizes ─────────────────────────────────────────────────────────────────────

    def _remember(self, name: str, record: Callable[..., object], batch: object, fn: Closure) -> None:
        modes = {module: module.training for module in self._all_modules()}
        self.recipes.setdefault(name.partition("@")[0], Recipe(record, batch, modes, fn))

    def _give(self, step: Step, names: Sequence[str]) -> None:
        """Adds graphs that were recorded after `step` was made to it, with the slots that are new to it."""
        for name in names:
            graph = self.graphs[name]
            for slot in graph.slots:
                if slot not in step.slots:
                    step.slots[slot] = self.state.slots[slot]
                    step.values[slot] = self.state.values[slot].reshape(self.state.slots[slot].shape)
            step.added[name] = graph
            if step.unfused is not None:
                step.unfused.slots.update({s: self.state.slots[s] for s in self._unfused[name].slots})
                constants = {s: v for s, v in self.state.values.items() if self.state.slots[s].role == "constant"}
                step.unfused.values.update(constants)
                step.unfused.graphs[name] = self._unfused[name]
