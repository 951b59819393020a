"""An author's operators as the protocol sees them: adapters from `dataflow.Operator` to `protocol.Logic`."""
