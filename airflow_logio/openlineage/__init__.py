"""What OpenLineage is told of a run (ADR-101). `running` needs no OpenLineage; the provider's questions import the rest."""
