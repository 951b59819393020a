"""The deterministic simulator: the protocol and the store are real; time, threads and failures are simulated."""
