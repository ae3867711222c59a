"""What Prometheus and OpenTelemetry see of a run: names, numbers, and the door to them."""
