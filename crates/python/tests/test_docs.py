"""The pages about Python run as they are written: the blocks of a page one after the other, in an empty directory."""

import re
from pathlib import Path

import pytest

CRATE = Path(__file__).parent.parent


@pytest.mark.parametrize("page", [CRATE / "README.md", CRATE / "../../docs/python.md"], ids=lambda page: page.name)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
