"""Work of the commands, one file per command."""
