"""Installs the routers that Poise is measured beside, and the load tool; says what could not be had. Safe to run again.

Python programs, Poise too, go into environments of their own under .bench/peers, the rest comes from Debian's packages.
The environments have the system's Python, which distributions build with profile-guided optimisation: a Python built by
hand without it runs the same code a quarter slower.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.routers import PEERS, ROOT, ROUTERS

PYTHON_PEERS = {"vllm-router": "vllm-router", "sglang-router": "sglang-router", "litellm": "litellm[proxy]"}
DEBIAN_PACKAGES = {"nginx": "nginx-light", "haproxy": "haproxy", "wrk": "wrk", "cc": "gcc", "make": "make"}
SYSTEM_PYTHON = Path("/usr/bin/python3")
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
INSTALL_LIMIT_S = 900


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Why a command failed, in one line."""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "no output")


def run(command: list[str]) -> str | None:
    """Runs an installer. None where it went well, else why not."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return last_line(done) if done.returncode else None


def install_python_peer(name: str, package: str) -> str | None:
    """Makes the peer's environment. None where it is there in the end, else why not."""
    if ROUTERS[name].absent() is None:
        return None
    directory: Path = PEERS / name
    shutil.rmtree(directory, ignore_errors=True)
    install = [str(directory / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", package]
    problem = make_environment(directory) or run(install)
    return problem or ROUTERS[name].absent()


def install_poise() -> str | None:
    """Installs this tree as a wheel, anew each time: what is measured is what is here."""
    directory: Path = PEERS / "poise"
    install = [str(directory / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", str(ROOT)]
    if directory.exists():
        install += ["--force-reinstall", "--no-deps"]
    elif problem := make_environment(directory):
        return problem
    return run(install)


def make_environment(directory: Path) -> str | None:
    """An environment with the system's Python, else the one that runs this. None where it went well."""
    python = str(SYSTEM_PYTHON) if SYSTEM_PYTHON.exists() else sys.executable
    problem = run([python, "-m", "venv", str(directory)])
    if problem:
        shutil.rmtree(directory, ignore_errors=True)
        problem += " (on Debian: apt-get install python3-venv python3-dev)"
    return problem


def install_debian_packages(programs: list[str]) -> str | None:
    """Installs what provides `programs`. None where it went well, else why not."""
    packages = [DEBIAN_PACKAGES[program] for program in programs]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"install them as root: apt-get install {' '.join(packages)}"
    return run(["apt-get", "update", "-qq"]) or run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    )


def missing_programs() -> list[str]:
    """The programs of `DEBIAN_PACKAGES` that are not there."""
    return [program for program in DEBIAN_PACKAGES if shutil.which(program, path=SYSTEM_PATH) is None]


def main() -> int:
    """Installs everything that is missing. 1 where not even the load tool and a compiler could be had."""
    missing = missing_programs()
    problem = install_debian_packages(missing) if missing else None
    for program in DEBIAN_PACKAGES:
        report(program, problem if program in missing_programs() else None)
    report("poise", install_poise())
    for name, package in PYTHON_PEERS.items():
        report(name, install_python_peer(name, package))
    return 1 if {"wrk", "cc", "make"} & set(missing_programs()) else 0


def report(name: str, problem: str | None) -> None:
    """One line for each program."""
    print(f"{name}: {problem or 'installed'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
