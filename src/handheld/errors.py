"""All errors that a user can meet.

    HandheldError
    ├── CaptureError            a PyTorch model could not be turned into a graph
    │   ├── UnsupportedOp       an op without a lowering: its name, where it is called, what to do
    │   └── ValueRead           the model reads a tensor's value while it is being captured
    ├── GraphError              a graph that breaks the rules (a bug in a pass, or a bad file)
    ├── StepFileError           a step file or checkpoint that is truncated, corrupt, newer or hostile
    ├── PlanFileError           a plan file that is truncated, damaged, newer or for another device
    ├── PlanError               no plan can be made for this graph on this device
    │   └── OutOfMemory         needed and available bytes, the smallest limit, the largest batch that fits
    ├── DeviceError             a device that is missing or failed
    │   ├── BuildError          the driver rejected a kernel: log, kernel, build options
    │   └── DeviceLost          a device that failed while it was in use: which, what is saved, what next
    │       └── TargetLost      the connection to another machine or a phone ended: which, when, what next
    ├── BatchError              a batch whose shape, type or values do not fit the plan
    ├── NonFiniteLoss           the loss became NaN or infinite: the step and, if requested, the first op
    ├── NonFiniteGradient       half precision: gradients overflow even at the smallest loss scale
    ├── RunFileError            a run file that cannot be written, read or understood
    ├── TraceError              a trace of another profiler that cannot be read
    ├── SamplesError            a table of measured costs that cannot be read, or does not fit
    ├── StudyError              a study that cannot run here, or a file that is not a result of it
    ├── ResultsError            a results folder that is in use, damaged or of another version
    ├── FleetError              a fleet file with a mistake: its line and a remedy; or none was found
    ├── DataError               a data set that cannot be read
    │   └── TooFewSamples       a data set with fewer samples than one batch
    ├── CheckpointError         a checkpoint that could not be written or does not fit the state
    └── SensorError             sensors, the sampler and its files
        ├── Unavailable         a sensor that is not present: why, and what to do
        └── SensorLost          a sensor that has stopped answering

Each message says what happened, where, and what to try next.
"""

from __future__ import annotations


class HandheldError(Exception):
    """The base class: `except HandheldError` catches every error that Handheld raises on purpose."""


class CaptureError(HandheldError):
    """A PyTorch model could not be turned into a graph."""


class UnsupportedOp(CaptureError):
    """A PyTorch op that has no lowering."""


class ValueRead(CaptureError):
    """The model reads the value of a tensor that depends on its inputs."""


class GraphError(HandheldError):
    """A graph that breaks the rules of graph/check.py."""


class StepFileError(HandheldError):
    """A step file or checkpoint that cannot be trusted or understood."""


class PlanFileError(HandheldError):
    """A plan file that cannot be written, trusted or understood."""


class PlanError(HandheldError):
    """No plan can be made for this graph on this device."""


class OutOfMemory(PlanError):
    """The plan needs more memory than the device has. `largest_batch` is the largest that fits, if one was found."""

    def __init__(self, text: str, needed_bytes: int | None = None, available_bytes: int | None = None) -> None:
        super().__init__(text)
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes
        #: The largest batch that fits, if it was looked for and one was found.
        self.largest_batch: int | None = None
        #: The bytes of the smallest plan that was found, if values may be computed again (limits/).
        self.smallest_bytes: int | None = None

    def again(self, text: str, largest_batch: int | None) -> OutOfMemory:
        """The same error with another text and with what was found about other batch sizes."""
        other = OutOfMemory(text, self.needed_bytes, self.available_bytes)
        other.largest_batch, other.smallest_bytes = largest_batch, self.smallest_bytes
        return other


class DeviceError(HandheldError):
    """A device that is missing, or that failed."""


class BuildError(DeviceError):
    """The driver rejected a kernel."""


class DeviceLost(DeviceError):
    """A device that failed while it was in use."""

    def add(self, sentence: str) -> DeviceLost:
        """The same error, which also says what was kept and how to go on."""
        return DeviceLost(f"{self}. {sentence}")


class TargetLost(DeviceLost):
    """The connection to the runner on a target ended while it was in use.

    `crashed` is True if the target is still connected and the runner itself has ended.
    """

    def __init__(self, text: str, crashed: bool = False) -> None:
        super().__init__(text)
        self.crashed = crashed

    def add(self, sentence: str) -> TargetLost:
        return TargetLost(f"{self}. {sentence}", self.crashed)


class BatchError(HandheldError):
    """A batch that does not fit the plan."""

    def __init__(self, message: str, allowed: tuple[str, int, int, int | None] | None = None) -> None:
        super().__init__(message)
        #: The input, its lowest number, its highest number plus 1 and the ignored number, if a number is out of range.
        self.allowed = allowed


class NonFiniteLoss(HandheldError):
    """The loss became NaN or infinite."""


class NonFiniteGradient(HandheldError):
    """In half precision, gradients are NaN or infinite even at the smallest loss scale."""


class RunFileError(HandheldError):
    """A run file that cannot be written, read or understood."""


class TraceError(HandheldError):
    """A trace of another profiler that is not one, is cut short, too large, or lacks what a run needs."""


class SamplesError(HandheldError):
    """A table of measured costs that cannot be read, or that is of another device."""


class StudyError(HandheldError):
    """A study that cannot run here, or a file that is not a result of it."""


class ResultsError(HandheldError):
    """A results folder that another process is writing, that is damaged, or that has another version."""


class FleetError(HandheldError):
    """A fleet file that is missing or has a mistake."""


class DataError(HandheldError):
    """A data set that cannot be read."""


class TooFewSamples(DataError):
    """A data set has fewer samples than one batch."""

    def __init__(self, text: str, samples: int) -> None:
        super().__init__(text)
        self.samples = samples


class CheckpointError(HandheldError):
    """A checkpoint that could not be written, or does not fit the state."""


class SensorError(HandheldError):
    """An error of sensors, the sampler or its files."""


class Unavailable(SensorError):
    """A sensor that is not present. The message says why and, if something can be done, what to do."""


class SensorLost(SensorError):
    """A sensor that has stopped answering."""
