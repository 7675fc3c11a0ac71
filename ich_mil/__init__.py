"""Detection of intracranial hemorrhage in head CT from scan labels alone, with uncertainty."""

__version__ = "0.1.0"
