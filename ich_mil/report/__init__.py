"""What people read: one self-contained offline page for a study, one for a run."""
