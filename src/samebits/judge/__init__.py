"""Judging: certify, compare, locate, decide. Runs anywhere; never imports torch."""
