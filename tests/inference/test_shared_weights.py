"""Tensors in memory shared by the trainer and the server."""

import os
import socket
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.inference.vllm.shared_weights import ALIGNMENT, PackedTensor, mapped, pack, reserve, unpack

DTYPES = ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "int8", "uint8", "int32", "int64", "bool"]
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@settings(deadline=None)
@given(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=8), st.integers(0, 1000))
def test_packed_tensors_are_unpacked_unchanged(specs: list[tuple[tuple[int, ...], str]], seed: int) -> None:
    """Every bit is preserved for any dtype and shape, including empty and non-contiguous tensors and scalars."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for number, (shape, dtype) in enumerate(specs):
        tensor = (3 * torch.randn(shape, generator=generator)).to(getattr(torch, dtype))
        tensors.append((str(number), tensor.mT if len(shape) > 1 and number % 2 else tensor))
    entries = [
        PackedTensor(name, dtype, shape) for name, (shape, dtype) in zip(map(str, range(8)), specs, strict=False)
    ]
    flat = torch.empty(sum(each.num_bytes for each in entries), dtype=torch.uint8)
    assert flat.numel() % ALIGNMENT == 0
    unpacked = unpack(pack(tensors, flat), flat)
    assert [name for name, _ in unpacked] == [name for name, _ in tensors]
    for (_, ours), (_, theirs) in zip(unpacked, tensors, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert torch.equal(ours.contiguous().view(-1).view(torch.uint8), theirs.contiguous().view(-1).view(torch.uint8))


@pytest.mark.parametrize(
    ("dtype", "size", "words"),
    [("float32", 5, "exceed its 16 bytes"), ("sys", 1, "is not a torch dtype"), ("nothing", 1, "is not a torch dtype")],
)
def test_invalid_bucket_entries_are_refused(dtype: str, size: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        unpack([PackedTensor("w", dtype, (size,))], torch.zeros(16, dtype=torch.uint8))


@pytest.fixture
def path() -> Path:
    return reserve(f"test-{socket.gethostname()}-{os.getpid()}", 64)


def test_both_sides_see_the_same_memory(path: Path) -> None:
    """Memory stays shared after the file is unlinked, and only its owner may read the file."""
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        ours, theirs = mapped(path), mapped(path)
    finally:
        path.unlink()
    ours[1] = 7
    assert theirs[1].item() == 7


def test_other_files_are_not_mapped(path: Path, tmp_path: Path) -> None:
    """Anyone who can reach a server's port can pass a path, so only files that `reserve` made are accepted."""
    (tmp_path / path.name).write_bytes(b"x" * 10)
    (link := Path("/dev/shm") / f"rg-env-link-{os.getpid()}").symlink_to(tmp_path / path.name)
    try:
        for other in (tmp_path / path.name, Path("/etc/passwd"), link, path / ".." / "x"):
            with pytest.raises((ValueError, OSError)):
                mapped(other)
    finally:
        link.unlink()
        path.unlink()
