"""One rule of advice per bottleneck, one file each. ../advise.py asks them all.

base        Advice, Gain and Change: what a rule returns
growth      the time of a step at a larger batch, from one run
launches    a device that mostly launches        tune       kernels without a tuning record
batch       a batch that does not fill a device  half       memory traffic and memory that halves would save
chains      tensors passed between memory-bound ops
activations activations that fill the memory     freeze     first layers that need not be trained
inputs      a device that waits for data         heat       clocks that fall
processor   a better processor in this machine   joules     a batch that wastes energy
"""
