"""Run a benchmark protocol, given by name or file; without one, list the protocols.

    python -m research.reproduce
    python -m research.reproduce digits --jobs 2
    python -m research.reproduce my_protocol.yaml --seeds "[0, 1]" --out FOLDER

Any setting of `research.reproduce.protocol` may follow, its value in YAML.
"""

import sys
from collections.abc import Sequence

from ich_mil.errors import IchMilError
from research.reproduce.protocol import list_protocols, read_protocol


def main(words: Sequence[str]) -> int:
    """Exit code: 0, or 2 for bad input, with one line on stderr."""
    if not words or words[0] in ("-h", "--help"):
        print(f"{__doc__}\n{list_protocols()}")
        return 0
    try:
        config = read_protocol(words)
        from research.reproduce.run import reproduce  # imports torch

        reproduce(config)
    except IchMilError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
