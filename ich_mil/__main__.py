"""`python -m ich_mil` is the command `ich-mil`."""

from ich_mil.cli import main

raise SystemExit(main())
