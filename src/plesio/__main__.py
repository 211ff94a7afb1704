"""`python -m plesio`: the program."""

from plesio.cli import app

if __name__ == "__main__":
    app()
