"""The deterministic simulator: real protocol, real store, simulated time, threads and failures."""
