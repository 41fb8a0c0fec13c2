"""Presenters of a judgement: HTML, JSON, JUnit, terminal. They compute nothing."""
