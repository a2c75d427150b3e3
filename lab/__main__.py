"""``python -m lab COMMAND``."""

from lab.calibrate import app

if __name__ == "__main__":
    app()
