"""Names of files of a report."""


def file_stem(name: str) -> str:
    """`name` with `_` for each character that is neither a letter nor a digit."""
    return "".join(c if c.isalnum() else "_" for c in name)
