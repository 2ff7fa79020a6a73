"""``python -m parcade``."""

from parcade.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
