"""The wheel that users install: its hot path is compiled, and it runs."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]


def hot_path() -> set[str]:
    """The modules that are to be compiled."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    source = ROOT / "src"
    found = {path for pattern in hook["custom"]["modules"] for path in source.glob(pattern)}
    return {str(path.relative_to(source)) for path in found} - set(hook["custom"]["pure"])


def test_every_module_of_the_hot_path_is_compiled_and_imports(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    compiled = {name.partition(".")[0] + ".py" for name in names if name.endswith(".so")}
    assert hot_path() <= compiled, f"not compiled: {sorted(hot_path() - compiled)}"
    program = "import poise.cli.main, poise.proxy.exchange as exchange; print(exchange.__file__)"
    environment = {"PYTHONPATH": str(tmp_path / "installed")}
    loaded = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip().endswith(".so")
