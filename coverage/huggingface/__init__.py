"""Models of Hugging Face transformers, as small as their configurations allow: one file per kind."""

from __future__ import annotations

from family import Family

from huggingface import decoders, encoders, mixed, newer_decoders, seq2seq, speech, staged_vision, vision

FAMILIES: list[Family] = [
    *decoders.FAMILIES,
    *newer_decoders.FAMILIES,
    *encoders.FAMILIES,
    *seq2seq.FAMILIES,
    *vision.FAMILIES,
    *staged_vision.FAMILIES,
    *speech.FAMILIES,
    *mixed.FAMILIES,
]
