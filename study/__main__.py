"""`python -m study`."""

from study.main import main

main()
