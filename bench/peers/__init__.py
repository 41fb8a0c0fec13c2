"""What `bench/capture.py` measures capture against; nothing here is a bench of its own."""
