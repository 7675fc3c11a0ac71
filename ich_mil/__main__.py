"""`python -m ich_mil` is the command `ich-mil`, and calls itself so."""

from ich_mil.cli import main

raise SystemExit(main())
