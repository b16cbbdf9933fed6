"""Trains a part of a model: selects parameters, adds LoRA, and stores what is frozen in 8 or 4 bits.

    patterns.py   shell globs of names, with the nearest names for one that matches nothing
    select.py     which parameters train: patterns, last layers, biases, norms
    lora.py       two small trained matrices beside each frozen one; merging
    sparse.py     a choice of parameters under a budget of memory or time; worth.py says what each is worth
    quantise.py   frozen weights of a captured step in 8 or 4 bits
    options.py    all of these as the options of a command

The last but one changes a captured step and needs no PyTorch. The others change a PyTorch module before its capture.
"""
