"""Radiology reports: key terms of a collection, and scan labels from statements about intracranial blood."""

from ich_mil.errors import check_installed

check_installed("snowballstemmer", "reports", "the language of reports")
