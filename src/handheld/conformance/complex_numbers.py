"""Complex numbers and Fourier transforms. The tensors of the cases are real."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from handheld.conformance.case import Case, normal, of

T = torch.Tensor


def _pair(x: T) -> T:
    return torch.view_as_complex(x)


def _shown(x: T) -> T:
    return torch.view_as_real(x.resolve_conj())


def _rotary(x: T, turn: T) -> T:
    """Rotary position embedding as in Llama's first code."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(turn), turn)).flatten(-2)


def _arithmetic() -> Iterator[Case]:
    pair = normal(3, 5, 2), normal(3, 5, 2)
    yield of("complex mul", lambda a, b: _shown(_pair(a) * _pair(b)), *pair)
    yield of("complex div", lambda a, b: _shown(_pair(a) / _pair(b)), *pair)
    yield of("complex add", lambda a, b: _shown(_pair(a) + 2 * _pair(b) - 1.5), *pair)
    yield of("complex scalar", lambda a: _shown(_pair(a) * (1 + 2j) / 3), normal(3, 5, 2))
    yield of("complex conj", lambda a, b: _shown(_pair(a).conj() * _pair(b)), *pair)
    yield of("complex abs", lambda a: _pair(a).abs(), normal(3, 5, 2))
    yield of("complex angle", lambda a: _pair(a.detach()).angle(), normal(3, 5, 2))
    yield of("complex exp", lambda a: _shown(_pair(a).exp()), normal(3, 5, 2))
    yield of("complex parts", lambda a: _pair(a).real * _pair(a).imag, normal(3, 5, 2))
    yield of("complex make", lambda a, b: torch.complex(a, b).abs(), normal(3, 5), normal(3, 5))
    yield of("complex polar", lambda a: _shown(torch.polar(a.exp(), a)), normal(3, 5))
    yield of("complex sum", lambda a: _shown(_pair(a).sum(1) + _pair(a).mean()), normal(3, 5, 2))
    yield of(
        "complex matmul",
        lambda a, b: _shown(_pair(a) @ _pair(b).transpose(1, 2)),
        normal(2, 3, 5, 2),
        normal(2, 7, 5, 2),
    )
    yield of(
        "complex einsum",
        lambda a, b: _shown(torch.einsum("bix,iox->box", _pair(a), _pair(b))),
        normal(2, 3, 5, 2),
        normal(3, 4, 5, 2),
    )
    yield of("complex rotary", _rotary, normal(2, 3, 5, 8), normal(5, 4))

    def placed(a: T) -> T:
        whole = torch.zeros(3, 7, dtype=torch.cfloat)
        whole[:, 1:6] = _pair(a)
        whole[:, 0] = 1.5
        return _shown(torch.cat([whole, _pair(a)], 1).t())

    yield of("complex writes", placed, normal(3, 5, 2), rounded=True)


def _fourier() -> Iterator[Case]:
    for n in (1, 7, 8):
        yield of(f"fft {n}", lambda x: _shown(torch.fft.fft(x)), normal(3, n), rounded=True)
        yield of(f"rfft {n}", lambda x: _shown(torch.fft.rfft(x)), normal(3, n), rounded=True)
        yield of(
            f"irfft of rfft {n}",
            lambda x, n=n: torch.fft.irfft(torch.fft.rfft(x).square().abs(), n=n),
            normal(3, n),
            rounded=True,
        )
    yield of("fft real part", lambda x: torch.fft.fftn(x, dim=(1, 2)).real, normal(2, 5, 7), rounded=True)
    yield of(
        "ifft orthonormal",
        lambda x: _shown(torch.fft.ifft(_pair(x), dim=0, norm="ortho")),
        normal(5, 3, 2),
        rounded=True,
    )
    yield of(
        "fft two dimensions and back",
        lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2, s=x.shape[-2:]),
        normal(2, 5, 6),
        rounded=True,
    )
    yield of("fft shift", lambda x: torch.fft.fftshift(torch.fft.fft2(x)).abs(), normal(5, 7), rounded=True)
    yield of(
        "stft",
        lambda x: torch.stft(x, 8, 3, window=torch.ones(8), return_complex=True).abs(),
        normal(2, 31),
        rounded=True,
    )


def complex_cases() -> list[Case]:
    return [*_arithmetic(), *_fourier()]
