"""`python -m ich_mil` is the command `ich-mil`, and calls itself so."""

import sys

from ich_mil.cli import main

sys.argv[0] = "ich-mil"
raise SystemExit(main())
