"""A volume for each test, closed after it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import quire


@pytest.fixture
def image(tmp_path: Path) -> Path:
    image = tmp_path / "data.img"
    quire.mkfs(image, size=64 << 20, label="test")
    return image


@pytest.fixture
def volume(image: Path) -> Iterator[quire.Volume]:
    with quire.Volume(image, cache_bytes=32 << 20) as volume:
        yield volume
