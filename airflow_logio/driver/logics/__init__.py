"""An author's operators as the protocol sees them: `dataflow.Operator` as `protocol.Logic`. Open `adapters.py` first."""
