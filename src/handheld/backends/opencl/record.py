"""Submitters that record a step once and let the driver replay it, which costs the host one call per step.

    QcomReplayer   cl_qcom_recordable_queues (Adreno)
    KhrReplayer    cl_khr_command_buffer
    Enqueuer       plain launches (submit.py)

`submitter_for` chooses. A step is recorded at its second run, because many graphs run only once. Recordings hold
kernels only; copies of slots follow as commands of their own. Steps whose commands keep times, single nodes and
repeated nodes are launched as always. If the driver refuses a recording, a warning says so, and launches go on.

pyopencl binds neither extension, so the entry points are called through ctypes with the handles of its objects.
"""

from __future__ import annotations

import ctypes
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

from handheld.backends.opencl.devices import opencl
from handheld.backends.opencl.submit import Bound, Enqueuer, Notes, Submitter, Work
from handheld.callers import warn_user
from handheld.errors import DeviceError

if TYPE_CHECKING:
    import pyopencl as cl

#: The variable that chooses the way, here and in the native runner.
VARIABLE = "HANDHELD_RECORDING"
QCOM, KHR = "cl_qcom_recordable_queues", "cl_khr_command_buffer"
#: A command buffer that may not be replayed while an earlier replay runs is recorded this many times.
IN_TURN = 2

# Constants of cl_ext.h and cl_ext_qcom.h.
_COMMAND_BUFFER_CAPABILITIES, _SIMULTANEOUS_USE = 0x12A9, 4
_COMMAND_BUFFER_FLAGS, _FLAG_SIMULTANEOUS_USE = 0x1293, 1
_QUEUE_RECORDABLE = 1 << 30  # Adreno's driver refuses it together with other properties.

_Function = Callable[..., Any]
_SIZES, _HANDLES = POINTER(c_size_t), POINTER(c_void_p)
_EVENTS = (c_uint32, _HANDLES, _HANDLES)  # the number of events to wait for, these events, the new event
_LAUNCH = (c_void_p, c_uint32, _SIZES, _SIZES, _SIZES)  # kernel, dimensions, offset, global size, local size

#: name -> result, arguments
_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    "clGetDeviceInfo": (c_int32, (c_void_p, c_uint32, c_size_t, c_void_p, _SIZES)),
    "clCreateCommandQueue": (c_void_p, (c_void_p, c_void_p, c_uint64, POINTER(c_int32))),
    "clEnqueueNDRangeKernel": (c_int32, (c_void_p, *_LAUNCH, *_EVENTS)),
    "clNewRecordingQCOM": (c_void_p, (c_void_p, POINTER(c_int32))),
    "clEndRecordingQCOM": (c_int32, (c_void_p,)),
    # Arguments, offsets, global and local sizes that a replay may change: four times a number and a list.
    "clEnqueueRecordingQCOM": (c_int32, (c_void_p, c_void_p, *(c_size_t, c_void_p) * 4, *_EVENTS)),
    "clCreateCommandBufferKHR": (c_void_p, (c_uint32, _HANDLES, POINTER(c_uint64), POINTER(c_int32))),
    "clCommandNDRangeKernelKHR": (
        c_int32,
        (c_void_p, c_void_p, c_void_p, *_LAUNCH, c_uint32, c_void_p, c_void_p, c_void_p),
    ),
    "clFinalizeCommandBufferKHR": (c_int32, (c_void_p,)),
    "clReleaseCommandBufferKHR": (c_int32, (c_void_p,)),
    "clEnqueueCommandBufferKHR": (c_int32, (c_uint32, _HANDLES, c_void_p, *_EVENTS)),
}


def submitter_for(device: cl.Device, way: str | None = None) -> Submitter:
    """Returns the submitter of a device. `way` is auto, off, qcom or khr; without it HANDHELD_RECORDING decides.

    With auto, a step is recorded only where that is known to pay: on Adreno.
    """
    way = way or os.environ.get(VARIABLE) or "auto"
    if way not in ("auto", "off", "qcom", "khr"):
        raise DeviceError(f"{VARIABLE}={way!r:.40} is no way to run a step. Try: auto, off, qcom or khr")
    extensions = device.extensions.split()
    if way == "qcom" or (way == "auto" and QCOM in extensions):
        return QcomReplayer(device)
    return KhrReplayer(device) if way == "khr" else Enqueuer()


class _Refused(Exception):
    """The driver refused a call. The text names it."""


class _Recording(NamedTuple):
    """What a driver replays: its handles, of which one is replayed at a time, in turn."""

    handles: tuple[int, ...]
    #: The event of the last replay of each handle; None if a handle may be replayed at any time.
    last: list[cl.Event | None] | None


class Replayer(Submitter):
    """Replays steps. What cannot be recorded is launched."""

    extension: str
    entries: tuple[str, ...]

    def __init__(self, device: cl.Device) -> None:
        if self.extension not in device.extensions.split():
            raise DeviceError(f"{device.name} has no {self.extension}. Try: {VARIABLE}=off")
        self._device, self._plain = device, Enqueuer()
        self._library = ctypes.CDLL(opencl()._cl.__file__)  # It finds the functions of the OpenCL that pyopencl uses.
        address = self._library.clGetExtensionFunctionAddressForPlatform
        address.restype, address.argtypes = c_void_p, (c_void_p, c_char_p)
        self._calls: dict[str, _Function] = {}
        for name in self.entries:
            found = address(device.platform.int_ptr, name.encode()) if name.endswith(("KHR", "QCOM")) else None
            self._calls[name] = self._typed(name, found)
        self._seen: set[str] = set()
        self._recordings: dict[str, _Recording | None] = {}
        self.replays = 0

    def _typed(self, name: str, address: int | None) -> _Function:
        result, args = _SIGNATURES[name]
        kind = ctypes.CFUNCTYPE(result, *args)
        if address is not None:
            return kind(address)
        if name.endswith(("KHR", "QCOM")):
            raise DeviceError(f"{self._device.name} lists {self.extension} but has no {name}. Try: {VARIABLE}=off")
        return kind((name, self._library))

    def submit(self, queue: cl.CommandQueue, work: Work, notes: Notes | None) -> cl.Event | None:
        key = work.key
        if notes is not None or key is None or "/" in key or not work.launches:
            return self._plain.submit(queue, work, notes)
        if key not in self._seen:
            self._seen.add(key)
            return self._plain.submit(queue, work, notes)
        if key not in self._recordings:
            self._recordings[key] = self._recorded(queue, work)
        recording = self._recordings[key]
        return self._plain.submit(queue, work, notes) if recording is None else self._replayed(queue, recording)

    def _recorded(self, queue: cl.CommandQueue, work: Work) -> _Recording | None:
        try:
            return self._record(queue, work.launches)
        except _Refused as why:
            warn_user(f"{self._device.name} cannot record a step ({why}); its {len(work.launches)} launches go on")
            return None

    def _replayed(self, queue: cl.CommandQueue, recording: _Recording) -> cl.Event:
        turn = self.replays % len(recording.handles)
        before = recording.last[turn] if recording.last is not None else None
        if before is not None:
            before.wait()
        event = c_void_p()
        code = self._replay(queue, recording.handles[turn], event)
        if code:
            name = opencl().status_code.to_string(code, f"error {code}")
            raise DeviceError(f"{self._device.name} did not replay a recorded step: {name}. Try: {VARIABLE}=off")
        self.replays += 1
        done: cl.Event = opencl().Event.from_int_ptr(event.value, False)
        if recording.last is not None:
            recording.last[turn] = done
        return done

    @abstractmethod
    def _record(self, queue: cl.CommandQueue, launches: Sequence[Bound]) -> _Recording:
        """Records launches. Raises _Refused."""

    @abstractmethod
    def _replay(self, queue: cl.CommandQueue, handle: int, event: c_void_p) -> int:
        """Enqueues a recording and returns the driver's code."""

    def clear(self) -> None:
        self._seen.clear()
        self._recordings.clear()


def _need(code: int, name: str) -> None:
    if code:
        raise _Refused(f"{name}: {opencl().status_code.to_string(code, f'error {code}')}")


def _launch(launch: Bound) -> tuple[Any, ...]:
    """The arguments of a launch that every call has: kernel, dimensions, no offset, sizes."""
    _, kernel, wide, local = launch
    sizes = c_size_t * len(wide)
    return kernel.int_ptr, len(wide), None, sizes(*wide), sizes(*local)


class KhrReplayer(Replayer):
    """cl_khr_command_buffer, provisional versions 0.9.0 and later. What is used here is the same in all of them."""

    extension = KHR
    entries = ("clGetDeviceInfo", *(name for name in _SIGNATURES if name.endswith("KHR")))

    def _record(self, queue: cl.CommandQueue, launches: Sequence[Bound]) -> _Recording:
        may = c_uint64()
        capabilities = (self._device.int_ptr, _COMMAND_BUFFER_CAPABILITIES, 8, ctypes.addressof(may), None)
        if self._calls["clGetDeviceInfo"](*capabilities):
            may.value = 0
        at_once = bool(may.value & _SIMULTANEOUS_USE)
        handles = tuple(self._buffer(queue, launches, at_once) for _ in range(1 if at_once else IN_TURN))
        return _Recording(handles, None if at_once else [None] * IN_TURN)

    def _buffer(self, queue: cl.CommandQueue, launches: Sequence[Bound], at_once: bool) -> int:
        call, code = self._calls, c_int32()
        flags = (c_uint64 * 3)(_COMMAND_BUFFER_FLAGS, _FLAG_SIMULTANEOUS_USE, 0)
        handle = call["clCreateCommandBufferKHR"](
            1, (c_void_p * 1)(queue.int_ptr), flags if at_once else None, byref(code)
        )
        _need(code.value, "clCreateCommandBufferKHR")
        try:
            for launch in launches:
                args = (handle, None, None, *_launch(launch), 0, None, None, None)
                _need(call["clCommandNDRangeKernelKHR"](*args), "clCommandNDRangeKernelKHR")
            _need(call["clFinalizeCommandBufferKHR"](handle), "clFinalizeCommandBufferKHR")
        except _Refused:
            call["clReleaseCommandBufferKHR"](handle)
            raise
        return int(handle)

    def _replay(self, queue: cl.CommandQueue, handle: int, event: c_void_p) -> int:
        enqueue = self._calls["clEnqueueCommandBufferKHR"]
        return int(enqueue(0, None, handle, 0, None, byref(event)))

    def clear(self) -> None:
        for recording in self._recordings.values():
            for handle in recording.handles if recording else ():
                self._calls["clReleaseCommandBufferKHR"](handle)
        super().clear()


class QcomReplayer(Replayer):
    """cl_qcom_recordable_queues: kernels that are enqueued into a recordable queue, for a normal in-order queue.

    Recordings are not released before the process ends, because drivers have crashed doing so.
    """

    extension = QCOM
    entries = (
        "clCreateCommandQueue",
        "clEnqueueNDRangeKernel",
        *(name for name in _SIGNATURES if name.endswith("QCOM")),
    )

    def _record(self, queue: cl.CommandQueue, launches: Sequence[Bound]) -> _Recording:
        call, code = self._calls, c_int32()
        own = call["clCreateCommandQueue"](queue.context.int_ptr, self._device.int_ptr, _QUEUE_RECORDABLE, byref(code))
        _need(code.value, "clCreateCommandQueue")
        handle = call["clNewRecordingQCOM"](own, byref(code))
        _need(code.value, "clNewRecordingQCOM")
        for launch in launches:
            args = (own, *_launch(launch), 0, None, None)
            _need(call["clEnqueueNDRangeKernel"](*args), "clEnqueueNDRangeKernel")
        _need(call["clEndRecordingQCOM"](handle), "clEndRecordingQCOM")
        return _Recording((int(handle),), None)

    def _replay(self, queue: cl.CommandQueue, handle: int, event: c_void_p) -> int:
        nothing = (0, None) * 4
        return int(self._calls["clEnqueueRecordingQCOM"](queue.int_ptr, handle, *nothing, 0, None, byref(event)))
