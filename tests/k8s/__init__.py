"""Drivers on a real cluster of Kubernetes: `make test-k8s`. docker/k8s/README.md says what it needs."""
