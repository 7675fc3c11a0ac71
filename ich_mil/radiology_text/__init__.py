"""Radiology reports: key terms of a collection, and scan labels from statements about intracranial blood."""
