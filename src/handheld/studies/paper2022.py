"""What das2022 published, as data. Times were read off a chart, to ±3%.

Das, Kwon, Chauhan, Mascolo, "Enabling On-Device Smartphone GPU based Training: Lessons Learned" (PerCom Workshops
2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TITLE = "Enabling On-Device Smartphone GPU based Training: Lessons Learned"
AUTHORS = "Das, Kwon, Chauhan and Mascolo, PerCom Workshops 2022"
PHONES = ("OnePlus 6", "OnePlus 8 Pro", "OnePlus Nord")
GPUS = ("Adreno 630", "Adreno 650", "Adreno 620")
READ_OFF = 0.03  # The relative error of reading a chart.

CPU, GPU, STOCK = "CPU", "GPU, optimised", "GPU, stock"
#: µs per backward pass at batch 32, by model and processor, in the order of PHONES.
BACKWARD_US: Mapping[str, Mapping[str, tuple[int, int, int]]] = MappingProxyType(
    {
        "m1": {CPU: (22, 20, 24), GPU: (352, 447, 456), STOCK: (363, 433, 569)},
        "m2": {CPU: (48, 30, 53), GPU: (994, 1184, 1222), STOCK: (972, 1148, 1309)},
        "m3": {CPU: (66, 36, 55), GPU: (475, 499, 494), STOCK: (403, 504, 594)},
        "m4": {CPU: (185, 105, 159), GPU: (865, 1355, 1288), STOCK: (881, 1335, 1435)},
    }
)
LAYERS: Mapping[str, int] = MappingProxyType({"m1": 1, "m2": 3, "m3": 1, "m4": 3})
#: GFLOP/s of matrix products, in the order of PHONES. For the CPU it is a range.
GFLOPS: Mapping[str, tuple[float, float, float]] = MappingProxyType({STOCK: (10.0, 15.0, 5.0), GPU: (40.0, 70.0, 25.0)})
CPU_GFLOPS = (15.0, 30.0)
TRANSFER_SHARE = 0.91  # The share of transfers in the training time.
TRANSFERS_TO_COMPUTE = (10.0, 15.0)  # The time of transfers relative to the compute time.
GOAL_SHARE = 0.02  # Our own goal: the largest share of transfers in a step that stays on the device.
