"""`python -m manyviews` is `manyviews`."""

from manyviews.cli import main

main()
