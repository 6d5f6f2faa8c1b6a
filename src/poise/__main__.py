"""`python -m poise` is the `poise` command."""

from poise.cli.main import run

if __name__ == "__main__":
    run()
