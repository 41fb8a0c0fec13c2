"""Two arms record by record: certify, align, compare, diagnose. Never imports torch."""
