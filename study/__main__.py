"""Entry point of `python -m study`."""

from study.cli.main import main

main()
